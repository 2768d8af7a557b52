#include "grammar/schema_compiler.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "grammar/grammar_states.h"
#include "grammar/schema_validator.h"
#include "support/expect_error.h"

namespace thimble {
namespace {

// The grammar of a schema.
struct Compiled {
  explicit Compiled(const std::string& text) : schema(ParseJson(text)) {
    SchemaCompiler compiler(schema, "schema", JsonSpacing::kNone, &grammar);
    const uint32_t root = compiler.Json();
    fits_anything = grammar.Finish(root);
    unbound = compiler.unbound();
  }
  bool Takes(const std::string& text) const {
    GrammarStates states(grammar);
    GrammarStates::Id state = states.start();
    for (const char c : text) state = states.Step(state, static_cast<unsigned char>(c));
    return states.complete(state);
  }

  JsonValue schema;
  Grammar grammar;
  bool fits_anything = false;
  std::vector<std::string> unbound;
};

void ExpectTakes(const std::string& schema, const std::vector<std::string>& texts) {
  const Compiled compiled(schema);
  EXPECT_EQ(compiled.unbound, std::vector<std::string>()) << schema;
  for (const std::string& text : texts) EXPECT_TRUE(compiled.Takes(text)) << schema << "\n" << text;
}
void ExpectRefuses(const std::string& schema, const std::vector<std::string>& texts) {
  const Compiled compiled(schema);
  for (const std::string& text : texts)
    EXPECT_FALSE(compiled.Takes(text)) << schema << "\n" << text;
}

// A text of random bytes of those that are allowed, where `stay` of a hundred that could end go on.
std::string RandomText(const Grammar& grammar, std::mt19937& random, unsigned stay) {
  GrammarStates states(grammar);
  GrammarStates::Id state = states.start();
  std::string text;
  while (!states.complete(state) || (!states.ended(state) && random() % 100 < stay)) {
    std::vector<uint32_t> bytes;
    std::vector<uint32_t> closing;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      if (states.Step(state, byte) == GrammarStates::kDead) continue;
      bytes.push_back(byte);
      if (byte == '"' || byte == ']' || byte == '}') closing.push_back(byte);
    }
    EXPECT_FALSE(bytes.empty()) << "a dead end after " << text;
    // Beyond a length whatever can close does.
    const bool closes = !closing.empty() && (text.size() > 2000 || random() % 100 >= stay);
    const auto& choice = closes ? closing : bytes;
    const uint32_t byte = choice[random() % choice.size()];
    text += static_cast<char>(byte);
    state = states.Step(state, byte);
    if (states.full()) states.Compact({&state, 1});
    if (text.size() > 20'000 || bytes.empty()) return text;
  }
  return text;
}

constexpr const char* kSchemas[] = {
    // zod
    R"({"type":"object","properties":{"age":{"type":"integer","minimum":-9007199254740991,
        "maximum":9007199254740991}},"required":["age"],"additionalProperties":false,
        "$schema":"http://json-schema.org/draft-07/schema#"})",
    R"({"type":"object","properties":{"n":{"type":"number","exclusiveMinimum":0,"maximum":1},
        "s":{"type":"string","minLength":2,"maxLength":5},"t":{"type":"array",
        "items":{"type":"string","pattern":"^[a-z]{2,4}$"},"minItems":1,"maxItems":3}},
        "required":["n","s","t"],"additionalProperties":false})",
    R"({"type":"object","properties":{"kind":{"type":"string","const":"a"},"m":{"type":"object",
        "additionalProperties":{"type":"boolean"},"propertyNames":{"type":"string",
        "pattern":"^k[0-9]+$"}}},"required":["kind","m"],"additionalProperties":false})",
    // pydantic
    R"({"$defs":{"Colour":{"enum":["red","green"],"title":"Colour","type":"string"},
        "Item":{"properties":{"name":{"maxLength":8,"minLength":1,"title":"Name","type":"string"},
        "colour":{"allOf":[{"$ref":"#/$defs/Colour"}],"default":"red"},
        "price":{"exclusiveMinimum":0,"multipleOf":0.25,"title":"Price","type":"number"},
        "next":{"anyOf":[{"$ref":"#/$defs/Item"},{"type":"null"}],"default":null}},
        "required":["name","price"],"title":"Item","type":"object"}},"properties":{"items":{
        "items":{"$ref":"#/$defs/Item"},"maxItems":2,"title":"Items","type":"array"},
        "point":{"maxItems":2,"minItems":2,"prefixItems":[{"type":"integer"},{"type":"number"}],
        "title":"Point","type":"array"}},"required":["items","point"],"title":"Basket",
        "type":"object","x-source":"test"})",
    // A tree; alternatives with a discriminator; merged objects.
    R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer",
        "minimum":1,"maximum":6},"kids":{"type":"array","items":{"$ref":"#/$defs/tree"},
        "maxItems":2}},"required":["v","kids"]}}})",
    R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},
        "required":["k","x"]},{"type":"object","properties":{"k":{"const":"b"},"y":{
        "type":["string","null"],"maxLength":3}},"required":["k"]}]})",
    R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer","minimum":3}},
        "required":["a"]},{"properties":{"a":{"maximum":17},"b":{"type":"string","maxLength":2}},
        "required":["b"]}]})",
    R"({"type":"object","minProperties":2,"maxProperties":3,"properties":{"a":{"type":"null"},
        "b":{"type":"null"},"c":{"type":"null"},"d":{"type":"null"}}})",
    R"({"type":"object","properties":{"card":{"type":"integer"},"street":{"type":"string",
        "maxLength":2},"town":{"type":"boolean"}},"dependentRequired":{"card":["street"],
        "town":["street"]}})",
    R"({"type":"object","patternProperties":{"^n_":{"type":"integer"},"^s_":{"type":"string"}},
        "additionalProperties":{"type":"null"},"maxProperties":4})",
    R"({"type":"array","items":{"type":"integer","multipleOf":7,"minimum":-100,"maximum":1000},
        "minItems":3,"maxItems":5})",
    R"({"enum":["a","ab",12,-0.5,null,true,{"k":[1]}]})",
    R"({"type":"string","pattern":"^(?=.*[A-Z])(?=.*[0-9])[A-Za-z0-9]{4,8}$"})",
    R"({"type":"array","prefixItems":[{"const":1}],"items":{"const":2},"maxItems":4})",
    R"({"type":"number","minimum":0.25,"exclusiveMaximum":0.5})",
    R"({"type":"integer","exclusiveMinimum":-3,"exclusiveMaximum":4})",
    R"({"type":"string","minLength":3,"maxLength":3})",
    R"({"type":"object","properties":{"a":{}},"required":["a","b"],"maxProperties":2})",
};

TEST(SchemaCompilerTest, EveryTextFitsTheSchemaAndNoneIsADeadEnd) {
  std::mt19937 random(1);
  for (const char* text : kSchemas) {
    const Compiled compiled(text);
    ASSERT_TRUE(compiled.fits_anything) << text;
    EXPECT_EQ(compiled.unbound, std::vector<std::string>()) << text;
    const SchemaValidator validator(compiled.schema);
    for (unsigned round = 0; round < 40; ++round) {
      const std::string value = RandomText(compiled.grammar, random, 40 + round);
      ASSERT_TRUE(IsJson(value)) << text << "\n" << value;
      EXPECT_TRUE(validator.Fits(ParseJson(value))) << text << "\n" << value;
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(SchemaCompilerTest, AnyObjectIsEveryCompactObject) {
  const std::string any = R"({"type":"object"})";
  ExpectTakes(any,
              {"{}", R"({"a":1})", R"({"a":[1,-2.5e+3,0,true,false,null,"\u00e9\n"],"b":{"c":{}}})",
               "{\"\u00e9\U0001F389\":[]}", R"({"":[[[[]]]]})", R"({"p":"\ud83d\ude00\/"})"});
  ExpectRefuses(any, {"",
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
                      "{ }",
                      R"({"p":"\ud83d"})",
                      R"({"p":"\ude00"})"});
}

TEST(SchemaCompilerTest, NothingGoesOnForEverWithoutSaying) {
  ExpectRefuses("{}", {std::string(21, '1'), "1e999", "0." + std::string(21, '1'), " 1", "1 ",
                       std::string(102, '[') + std::string(102, ']')});
  ExpectTakes("{}",
              {std::string(20, '1'), "-1e-99", std::string(100, '[') + std::string(100, ']')});
}

TEST(SchemaCompilerTest, MembersComeInTheSchemasOrder) {
  const std::string schema = R"({"type": "object", "properties": {"a": {"type": "integer"},
      "b": {"type": "string"}, "c\"": {"type": "boolean"}}, "required": ["b"]})";
  ExpectTakes(schema, {R"({"b":""})", R"({"a":-1,"b":"x"})", R"({"b":"x","c\"":true})"});
  ExpectRefuses(schema, {"{}", R"({"a":1})", R"({"b":"x","a":1})", R"({"b":1})",
                         R"({"a":1.5,"b":"x"})", R"({"b":"x","d":1})", R"({"b":"x",})"});
  ExpectTakes(R"({"properties": {"a": {}}, "additionalProperties": {"type": "null"}})",
              {R"({"x":null,"y":null})", R"({"a":{"q":[1]},"x":null})"});
  // Another member never takes a property's name.
  ExpectRefuses(R"({"properties": {"a": {"type":"integer"}}, "additionalProperties": true})",
                {R"({"b":1,"a":"x"})", R"({"a":1,"a":2})"});
}

TEST(SchemaCompilerTest, Numbers) {
  ExpectTakes(R"({"type":"integer","minimum":-12,"maximum":105})",
              {"-12", "-1", "0", "9", "99", "105"});
  ExpectRefuses(R"({"type":"integer","minimum":-12,"maximum":105})",
                {"-13", "-0", "106", "1000", "1.0", "00"});
  ExpectTakes(R"({"type":"number","minimum":1e-2,"maximum":2.5})",
              {"0.01", "1", "2.5", "2.50", "2.499"});
  ExpectRefuses(R"({"type":"number","minimum":1e-2,"maximum":2.5})",
                {"0", "0.009", "2.51", "3", "-1"});
  ExpectTakes(R"({"type":"number","multipleOf":0.01})", {"1", "0.1", "-3.25"});
  ExpectRefuses(R"({"type":"number","multipleOf":0.01})", {"0.001"});
  ExpectTakes(R"({"type":"integer","minimum":1e3})", {"1000", "99999"});
  ExpectTakes(R"({"type":"integer","maximum":10,"exclusiveMaximum":true})", {"9", "-99"});
  ExpectRefuses(R"({"type":"integer","maximum":10,"exclusiveMaximum":true})", {"10"});
  ExpectRefuses(R"({"type":"integer","format":"int32"})", {"2147483648"});
}

TEST(SchemaCompilerTest, LengthsAreInCodePoints) {
  const std::string two = R"({"type":"string","minLength":2,"maxLength":2})";
  ExpectTakes(two, {R"("ab")", "\"\U0001F389\u00e9\"", R"("\u00e9\n")", R"("\ud83d\ude00x")"});
  ExpectRefuses(two, {R"("")", R"("a")", "\"\U0001F389\"", R"("abc")"});
  const std::string bounded = R"({"type":"string","pattern":"^a*b$","maxLength":3})";
  ExpectTakes(bounded, {R"("b")", R"("aab")"});
  ExpectRefuses(bounded, {R"("aaab")", R"("a")"});
  ExpectTakes(R"({"type":"string","maxLength":100000})", {"\"" + std::string(5000, 'x') + "\""});
}

TEST(SchemaCompilerTest, ArraysOfAnyLength) {
  const std::string many = R"({"type":"array","items":{"const":0},"minItems":300,"maxItems":400})";
  const auto zeros = [](size_t count) {
    std::string text = "[0";
    for (size_t i = 1; i < count; ++i) text += ",0";
    return text + "]";
  };
  ExpectTakes(many, {zeros(300), zeros(400)});
  ExpectRefuses(many, {zeros(299), zeros(401)});
  ExpectTakes(R"({"items": {}, "maxItems": 0})", {"[]"});
  ExpectRefuses(R"({"items": {}, "maxItems": 0})", {"[1]"});
  ExpectTakes(R"({"items":[{"const":1},{"const":2}],"additionalItems":false})", {"[1,2]", "[1]"});
  ExpectRefuses(R"({"items":[{"const":1},{"const":2}],"additionalItems":false})",
                {"[1,2,3]", "[2]"});
}

TEST(SchemaCompilerTest, AlternativesKeepWhatStandsBesideThem) {
  const std::string schema = R"({"type":"object","properties":{"k":{"type":"string"}},
      "required":["k"],"anyOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},
      {"properties":{"b":{"type":"null"}},"required":["b"]}]})";
  ExpectTakes(schema, {R"({"k":"","a":1})", R"({"k":"","b":null})"});
  ExpectRefuses(schema, {R"({"k":""})", R"({"a":1})"});
  ExpectTakes(R"({"anyOf":[{"minimum":5},{"maximum":2}],"type":"integer"})", {"7", "1"});
  ExpectRefuses(R"({"anyOf":[{"minimum":5},{"maximum":2}],"type":"integer"})", {"3", "\"a\""});
  ExpectTakes(R"({"type":"string","nullable":true,"maxLength":1})", {"null", "\"a\""});
  ExpectTakes(R"({"allOf":[{"$ref":"#/definitions/s"}],"nullable":true,
      "definitions":{"s":{"type":"string"}}})",
              {"null", "\"a\""});
  ExpectTakes(R"({"type":["integer","null"]})", {"null", "3"});
}

TEST(SchemaCompilerTest, References) {
  const std::string tree = R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object",
      "properties": {"v": {"type": "integer"}, "kids": {"type": "array",
      "items": {"$ref": "#/$defs/tree"}}}, "required": ["v"]}}})";
  ExpectTakes(tree, {R"({"v":1,"kids":[{"v":2},{"v":3,"kids":[{"v":4,"kids":[]}]}]})"});
  ExpectRefuses(tree, {R"({"v":1,"kids":[{"kids":[]}]})"});
  ExpectTakes(R"({"$ref":"#/$defs/a~1b","$defs":{"a/b":{"const":1}}})", {"1"});
  ExpectTakes(R"({"$ref":"#here","$defs":{"x":{"$anchor":"here","const":1}}})", {"1"});
  // An alternative that leads back to itself adds nothing, and nothing hangs.
  ExpectTakes(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", {"null"});
  ExpectRefuses(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", {"1"});
}

TEST(SchemaCompilerTest, AlternativesInAlternativesStayCheap) {
  std::string defs = R"("d0":{"type":"integer"})";
  for (int i = 1; i < 40; ++i) {
    const std::string inner = R"({"$ref":"#/$defs/d)" + std::to_string(i - 1) + "\"}";
    defs += R"(,"d)" + std::to_string(i) + R"(":{"type":"array","items":{"anyOf":[)" + inner + "," +
            inner + "]}}";
  }
  ExpectTakes(R"({"$ref":"#/$defs/d39","$defs":{)" + defs + "}}", {"[[],[[]]]"});
}

TEST(SchemaCompilerTest, LargeEnumerations) {
  std::string values;
  for (int i = 0; i < 3000; ++i) values += (i == 0 ? "\"v" : ",\"v") + std::to_string(i) + "\"";
  ExpectTakes(R"({"enum":[)" + values + "]}", {"\"v0\"", "\"v2999\"", "\"v77\""});
  ExpectRefuses(R"({"enum":[)" + values + "]}", {"\"v3000\"", "\"v\""});
}

TEST(SchemaCompilerTest, ListsWhatIsNotBound) {
  const auto unbound = [](const std::string& schema) { return Compiled(schema).unbound; };
  using List = std::vector<std::string>;
  EXPECT_EQ(unbound(R"({"type":"array","items":{"type":"string"},"uniqueItems":true})"),
            List{"schema.uniqueItems"});
  EXPECT_EQ(unbound(R"({"properties":{"a":{"not":{"const":1}}}})"),
            List{"schema.properties.a.not"});
  EXPECT_EQ(unbound(R"({"type":"string","pattern":"a\\b"})"),
            List{"schema.pattern (\\b is not supported)"});
  EXPECT_EQ(unbound(R"({"type":"string","format":"isbn"})"),
            List{"schema.format ('isbn' is not known)"});
  EXPECT_EQ(unbound(R"({"if":{"const":1},"then":{"type":"integer"}})"), List{"schema.if"});
  EXPECT_EQ(unbound(R"({"enum":[[1],[2,3]],"minItems":2})"),
            List{"schema.minItems (on a list of values)"});
  EXPECT_EQ(unbound(R"({"contains":{"const":1},"x-y":1,"title":"t","examples":[1]})"),
            List{"schema.contains"});
  EXPECT_EQ(unbound(R"({"type":"string","pattern":"(a|b)*a(a|b){20}"})").size(), 1u);
}

TEST(SchemaCompilerTest, RefusesWhatContradictsItself) {
  const auto refuse = [](const std::string& schema, std::vector<std::string> parts) {
    ExpectError(ErrorCode::kUsage, parts, [&] { Compiled compiled(schema); });
  };
  refuse(R"({"properties":{"age":{"type":"integer","minimum":5,"maximum":3}}})",
         {"schema.properties.age.minimum", "above the maximum"});
  refuse(R"({"type":"string","minLength":3,"maxLength":2})", {"schema.minLength", "3", "2"});
  refuse(R"({"items":{},"minItems":3,"maxItems":2})", {"schema.minItems"});
  refuse(R"({"minProperties":3,"maxProperties":2})", {"schema.minProperties"});
  refuse(R"({"enum":[]})", {"schema.enum", "not empty"});
  refuse(R"({"enum":["a"],"type":"integer"})", {"schema.enum", "no value"});
  refuse(R"({"anyOf":[]})", {"schema.anyOf"});
  refuse(R"({"type":"text"})", {"schema.type", "no type \"text\""});
  refuse(R"({"type":[]})", {"schema.type"});
  refuse(R"({"type":"string","pattern":"^ab$","maxLength":1})", {"schema.maxLength"});
  refuse(R"({"type":"string","pattern":"("})", {"schema.pattern", "not a regular expression"});
  refuse(R"({"type":"integer","minimum":1,"maximum":4,"multipleOf":5})", {"schema.minimum"});
  refuse(R"({"type":"integer","multipleOf":0})", {"schema.multipleOf"});
  refuse(R"({"required":["b"],"properties":{},"additionalProperties":false})",
         {"schema.required", "'b'"});
  refuse(R"({"not":{}})", {"schema.not"});
  refuse(R"({"$ref":"#/$defs/x"})", {"schema.$ref", "leads nowhere"});
  refuse(R"({"$ref":"http://example.com/x"})", {"schema.$ref", "#/"});
  refuse(R"({"minLength":"3","type":"string"})", {"schema.minLength", "whole number"});
  refuse(R"({"properties":{"a":3}})", {"schema.properties.a", "a schema"});
  refuse("3", {"schema: expected an object"});
}

// Unsatisfiable all the same, but only in the end.
TEST(SchemaCompilerTest, NoticesThatNothingFits) {
  for (const char* schema :
       {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
        R"({"allOf":[{"type":"integer"},{"type":"string"}]})", "false",
        R"({"type":"array","items":{"$ref":"#"},"minItems":1})"}) {
    bool fits = true;
    try {
      fits = Compiled(schema).fits_anything;
    } catch (const Error& error) {
      fits = false;
    }
    EXPECT_FALSE(fits) << schema;
  }
}

}  // namespace
}  // namespace thimble
