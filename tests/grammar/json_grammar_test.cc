#include "grammar/json_grammar.h"

#include <gtest/gtest.h>

#include <string>

#include "support/expect_error.h"

namespace thimble {
namespace {

// Whether `text` is a whole value; also checks that every beginning of one is taken.
bool Takes(const JsonGrammar& grammar, const std::string& text) {
  JsonState state(grammar);
  const bool fed = state.Feed(text);
  JsonState by_byte(grammar);
  bool alive = true;
  for (const char c : text) alive = alive && by_byte.Feed({&c, 1});
  EXPECT_EQ(alive, fed) << text;
  EXPECT_TRUE(!fed || by_byte.complete() == state.complete()) << text;
  return fed && state.complete();
}

bool Takes(const std::string& schema, const std::string& text) {
  return Takes(JsonGrammar::FromSchema(ParseJson(schema)), text);
}

TEST(JsonGrammarTest, AnyObjectIsEveryCompactObject) {
  const JsonGrammar grammar = JsonGrammar::AnyObject();
  for (const char* text :
       {"{}", R"({"a":1})", R"({"a":[1,-2.5e+3,0,true,false,null,"\u00e9\n"],"b":{"c":{}}})",
        "{\"\u00e9\U0001F389\":[]}", R"({"":[[[[]]]]})"}) {
    EXPECT_TRUE(Takes(grammar, text)) << text;
    EXPECT_TRUE(IsJson(text)) << text;
  }
  for (const char* text : {"",
                           "[]",
                           "1",
                           "{",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "{,}",
                           "{\"a\":01}",
                           "{\"a\":1.}",
                           "{\"a\":.5}",
                           "{\"a\":\"\n\"}",
                           "{\"a\":\"\\x\"}",
                           "{\"a\":nul}",
                           "{}x",
                           "{\"\xff\":1}",
                           "{\"\xc3\":1}",
                           "{\"\xed\xa0\x80\":1}",
                           "{\"\xf5\x80\x80\x80\":1}",
                           "{ }"}) {
    EXPECT_FALSE(Takes(grammar, text)) << text;
  }
}

TEST(JsonGrammarTest, ObjectsHaveTheirPropertiesInOrder) {
  const std::string schema = R"({"type": "object", "properties": {"a": {"type": "integer"},
      "b": {"type": "string"}, "c\"": {"type": "boolean"}}, "required": ["b"]})";
  for (const char* text : {R"({"b":""})", R"({"a":-1,"b":"x"})", R"({"b":"x","c\"":true})",
                           R"({"a":0,"b":"x","c\"":false})"}) {
    EXPECT_TRUE(Takes(schema, text)) << text;
  }
  for (const char* text : {"{}", R"({"a":1})", R"({"b":"x","a":1})", R"({"b":1})",
                           R"({"a":1.5,"b":"x"})", R"({"b":"x","d":1})", R"({"b":"x",})"}) {
    EXPECT_FALSE(Takes(schema, text)) << text;
  }
}

TEST(JsonGrammarTest, AdditionalPropertiesOnlyWhereSaid) {
  const std::string schema =
      R"({"properties": {"a": {}}, "additionalProperties": {"type": "null"}})";
  EXPECT_TRUE(Takes(schema, R"({"x":null,"y":null})"));
  EXPECT_TRUE(Takes(schema, R"({"a":{"q":[1]},"x":null})"));
  EXPECT_FALSE(Takes(schema, R"({"x":1})"));
  EXPECT_TRUE(Takes(R"({"type": "object"})", R"({"x":1})"));
  EXPECT_FALSE(Takes(R"({"type": "object", "additionalProperties": false})", R"({"x":1})"));
}

TEST(JsonGrammarTest, ArraysHaveTheirLengths) {
  const std::string schema =
      R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})";
  EXPECT_FALSE(Takes(schema, "[]"));
  EXPECT_TRUE(Takes(schema, "[1]"));
  EXPECT_TRUE(Takes(schema, "[1,22,3]"));
  EXPECT_FALSE(Takes(schema, "[1,2,3,4]"));
  EXPECT_FALSE(Takes(schema, "[\"1\"]"));
  EXPECT_TRUE(Takes(R"({"items": {}, "maxItems": 1})", "[]"));
  EXPECT_FALSE(Takes(R"({"items": {}, "maxItems": 1})", "[1,2]"));
  EXPECT_TRUE(Takes(R"({"items": {}, "minItems": 2})", "[1,2,3]"));
  EXPECT_FALSE(Takes(R"({"items": {}, "maxItems": 0})", "[1]"));
}

TEST(JsonGrammarTest, EnumsConstantsAndAlternatives) {
  EXPECT_TRUE(Takes(R"({"enum": ["a", 1, {"b": [2]}]})", R"({"b":[2]})"));
  EXPECT_FALSE(Takes(R"({"enum": ["a", "ab"]})", R"("b")"));
  EXPECT_TRUE(Takes(R"({"enum": ["a", "ab"]})", R"("ab")"));
  EXPECT_TRUE(Takes(R"({"const": null})", "null"));
  const std::string schema = R"({"anyOf": [{"type": "number"}, {"type": ["string", "null"]}]})";
  for (const char* text : {"1e5", "\"x\"", "null"}) EXPECT_TRUE(Takes(schema, text)) << text;
  EXPECT_FALSE(Takes(schema, "true"));
}

TEST(JsonGrammarTest, ReferencesMayBeRecursive) {
  const std::string schema = R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object",
      "properties": {"v": {"type": "integer"}, "kids": {"type": "array",
      "items": {"$ref": "#/$defs/tree"}}}, "required": ["v"]}}})";
  EXPECT_TRUE(Takes(schema, R"({"v":1,"kids":[{"v":2},{"v":3,"kids":[{"v":4,"kids":[]}]}]})"));
  EXPECT_FALSE(Takes(schema, R"({"v":1,"kids":[{"kids":[]}]})"));
  // Only itself: nothing fits, and nothing hangs.
  EXPECT_FALSE(Takes(R"({"$ref": "#"})", "1"));
}

TEST(JsonGrammarTest, AlternativesInAlternativesStayCheap) {
  std::string schema = R"({"type": "integer"})";
  std::string defs;
  for (int i = 0; i < 40; ++i) {
    const std::string inner =
        i == 0 ? schema : R"({"$ref": "#/$defs/d)" + std::to_string(i - 1) + "\"}";
    defs += (i == 0 ? "\"d" : ",\"d") + std::to_string(i) + R"(": {"anyOf": [)" + inner + "," +
            inner + "]}";
  }
  EXPECT_TRUE(Takes(R"({"$ref": "#/$defs/d39", "$defs": {)" + defs + "}}", "12"));
}

TEST(JsonGrammarTest, RefusesWhatItCannotHold) {
  const auto refuse = [](const std::string& schema, const std::string& part) {
    ExpectError(ErrorCode::kUsage, {part}, [&] { JsonGrammar::FromSchema(ParseJson(schema)); });
  };
  refuse(R"({"type": "string", "pattern": "a*"})", "'pattern' is not supported");
  refuse(R"({"type": "integer", "minimum": 3})", "'minimum'");
  refuse(R"({"type": "text"})", "no type 'text'");
  refuse(R"({"allOf": []})", "'allOf'");
  refuse(R"({"$ref": "#/$defs/x"})", "leads nowhere");
  refuse(R"({"$ref": "http://x"})", "'#'");
  refuse(R"({"enum": []})", "enum");
  refuse(R"({"properties": {}, "required": ["a"]})", "none of the properties");
  refuse(R"({"items": {}, "maxItems": 100000})", "maxItems");
  refuse("3", "object as schema");
}

}  // namespace
}  // namespace thimble
