#include "json/json_value.h"

#include <gtest/gtest.h>

#include <string>

#include "support/expect_error.h"

namespace thimble {
namespace {

std::string Python(const std::string& json) {
  return WriteJson(ParseJson(json), JsonStyle::kPython);
}

TEST(JsonValueTest, WritesNumbersAsPythonDoes) {
  const std::pair<const char*, const char*> numbers[] = {
      {"0", "0"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"1.50", "1.5"},
      {"1e2", "100.0"},
      {"0.00001", "1e-05"},
      {"0.0001", "0.0001"},
      {"1e16", "1e+16"},
      {"1e15", "1000000000000000.0"},
      {"123456789012345678", "123456789012345678"},
      {"18446744073709551615", "18446744073709551615"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"-123456789012345678901234567890", "-123456789012345678901234567890"},
      {"0.1", "0.1"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"5e-324", "5e-324"},
  };
  for (const auto& [json, python] : numbers) EXPECT_EQ(Python(json), python) << json;
}

TEST(JsonValueTest, KeepsTheOrderOfMembersAndTheLastOfEqualKeys) {
  EXPECT_EQ(Python(R"({"b": 1, "a": 2, "b": 3})"), R"({"b": 3, "a": 2})");
  std::string many = "{";
  for (int i = 0; i < 40; ++i)
    many += '"' + std::to_string(i % 30) + "\":" + std::to_string(i) + ",";
  many.back() = '}';
  const JsonValue value = ParseJson(many);
  ASSERT_EQ(value.members.size(), 30u);
  EXPECT_EQ(value.members[3].value.text, "33");
  EXPECT_EQ(value.Find("29")->text, "29");
}

TEST(JsonValueTest, EscapesOnlyWhatItMust) {
  EXPECT_EQ(Python(R"("a\"\\\/\b\f\n\r\t\u0001\u007fé\u20ac")"),
            "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\x7f\u00e9\u20ac\"");
}

TEST(JsonValueTest, HalfACharacterBecomesTheReplacementCharacter) {
  const std::pair<const char*, const char*> texts[] = {
      {R"("a\ud83d")", "a\ufffd"},
      {R"("\udE00b")", "\ufffdb"},
      {R"("\ud83d\ud83d\ude00")", "\ufffd\U0001F600"},
      {R"("\uD83D\uDE00")", "\U0001F600"},
      {R"("\ud83d\n")", "\ufffd\n"},
      {R"("\ud83dx")", "\ufffdx"},
      {R"("\\ud83d")", "\\ud83d"},
  };
  for (const auto& [json, text] : texts) EXPECT_EQ(ParseJson(json).text, text) << json;
  EXPECT_EQ(ParseJson(R"({"\udfff": 1})").members[0].key, "\ufffd");
  EXPECT_FALSE(IsJson(R"("\ud83d")"));
  EXPECT_FALSE(IsJson(R"("\ud83")"));
  ExpectError(ErrorCode::kUsage, {"JSON"}, [] { ParseJson(R"("\ud83")"); });
  ExpectError(ErrorCode::kUsage, {"JSON"}, [] { ParseJson("\"\\"); });
}

TEST(JsonValueTest, SortsKeysAtEveryDepth) {
  EXPECT_EQ(
      WriteJson(ParseJson(R"({"é":1,"b":[{"z":1,"a":null}],"B":true})"), JsonStyle::kCompactSorted),
      R"({"B":true,"b":[{"a":null,"z":1}],"é":1})");
}

TEST(JsonValueTest, RefusesWhatIsNoJson) {
  for (const char* text : {"", "{", "[1,]", "nul", "1 2", "\"\xff\"", "{\"a\" 1}", "NaN"}) {
    EXPECT_FALSE(IsJson(text)) << text;
    ExpectError(ErrorCode::kUsage, {"JSON"}, [&] { ParseJson(text); });
  }
  constexpr std::string_view kWithNul("12\0 and more", 12);
  EXPECT_FALSE(IsJson(kWithNul));
  ExpectError(ErrorCode::kUsage, {"NUL"}, [&] { ParseJson(kWithNul); });
  EXPECT_TRUE(IsJson(std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']')));
  ExpectError(ErrorCode::kUsage, {"deeper than 200"}, [] { ParseJson(std::string(100'000, '[')); });
}

}  // namespace
}  // namespace thimble
