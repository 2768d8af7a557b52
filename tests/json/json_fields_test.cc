#include "json/json_fields.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "support/expect_error.h"

namespace thimble {
namespace {

const JsonOrigin kFile = {"config.json"};

void ExpectFileError(const std::string& message, const auto& action) {
  EXPECT_EQ(ExpectBadModel({}, action),
            message + "; check that the file belongs to this model, or download it again");
}

void ExpectRequestError(const std::string& message, const auto& action) {
  EXPECT_EQ(ExpectError(ErrorCode::kUsage, {}, action), message);
}

TEST(JsonFieldsTest, ReadsWhatIsThere) {
  const JsonValue value = ParseJson(
      R"({"n": 7, "zero": 0, "x": -1.5, "b": true, "t": "a", "list": [1, 2], "names": ["a"],
          "inner": {"n": 3}, "inners": [{"n": 4}], "id": 5, "none": null})");
  const JsonFields fields(value, kFile);
  EXPECT_EQ(fields.Positive("n"), 7);
  EXPECT_EQ(fields.NonNegative("zero"), 0);
  EXPECT_EQ(fields.Integer("n", 7, 7), 7);
  EXPECT_EQ(fields.Number("x"), -1.5F);
  EXPECT_EQ(fields.MaybeNumberIn("x", -2, -1), -1.5);
  EXPECT_TRUE(fields.Bool("b"));
  EXPECT_EQ(fields.Text("t"), "a");
  EXPECT_EQ(fields.PositiveList("list"), (std::vector<size_t>{1, 2}));
  EXPECT_EQ(fields.TextList("names"), (std::vector<std::string>{"a"}));
  EXPECT_EQ(fields.Object("inner").Positive("n"), 3);
  EXPECT_EQ(fields.ObjectList("inners").at(0).Positive("n"), 4);
  EXPECT_EQ(fields.Ids("id"), (std::vector<size_t>{5}));
  EXPECT_EQ(fields.Ids("none"), (std::vector<size_t>{}));
}

TEST(JsonFieldsTest, NullAndMissingAreAbsent) {
  const JsonValue value = ParseJson(R"({"none": null})");
  const JsonFields fields(value, kFile);
  for (const char* key : {"none", "missing"}) {
    EXPECT_FALSE(fields.Has(key));
    EXPECT_EQ(fields.MaybePositive(key), std::nullopt);
    EXPECT_EQ(fields.MaybeNonNegative(key), std::nullopt);
    EXPECT_EQ(fields.MaybeNumber(key), std::nullopt);
    EXPECT_EQ(fields.MaybeNumberIn(key, 0, 1), std::nullopt);
    EXPECT_EQ(fields.MaybeBool(key), std::nullopt);
    EXPECT_EQ(fields.MaybeText(key), std::nullopt);
    EXPECT_FALSE(fields.MaybeObject(key).has_value());
    ExpectFileError(
        "config.json: field '" + std::string(key) + "': expected a string, found nothing",
        [&] { fields.Text(key); });
  }
}

TEST(JsonFieldsTest, FilesNameSourceFieldExpectedAndFound) {
  const JsonValue value =
      ParseJson(R"({"n": "x", "real": 4.0, "minus": -1, "big": 2147483648, "list": [1, 0],
                    "inner": {"n": 18446744073709551616}, "inners": [{}, {"b": 1}]})");
  const JsonFields fields(value, kFile);
  const std::string start = "config.json: field '";
  const std::string positive = "': expected an integer from 1 to 2^31 - 1, found ";
  ExpectFileError(start + "n" + positive + "\"x\"", [&] { fields.Positive("n"); });
  ExpectFileError(start + "real" + positive + "4.0", [&] { fields.Positive("real"); });
  ExpectFileError(start + "minus" + positive + "-1", [&] { fields.Positive("minus"); });
  ExpectFileError(start + "big" + positive + "2147483648", [&] { fields.Positive("big"); });
  ExpectFileError(start + "list" + positive + "[1,0]", [&] { fields.PositiveList("list"); });
  ExpectFileError(start + "inner.n" + positive + "18446744073709551616",
                  [&] { fields.Object("inner").Positive("n"); });
  ExpectFileError(start + "inners[1].b': expected true or false, found 1",
                  [&] { fields.ObjectList("inners").at(1).Bool("b"); });
}

TEST(JsonFieldsTest, CutsALongValueBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "\u00e9";
  const JsonValue value = ParseJson("{\"n\": \"" + text + "\"}");
  const std::string message =
      ExpectBadModel({"found \"\u00e9"}, [&] { JsonFields(value, kFile).Positive("n"); });
  EXPECT_TRUE(IsJson("\"" + message.substr(message.find("\u00e9")).substr(0, 20) + "\""));
  EXPECT_NE(message.find("\u00e9..."), std::string::npos) << message;
}

TEST(JsonFieldsTest, RequestsNameTheFieldAlone) {
  const JsonValue value = ParseJson(R"({"n": 7, "x": 3, "b": "yes"})");
  const JsonFields fields(value, RequestOrigin(), "messages[1].");
  ExpectRequestError("messages[1].n: expected an integer from 1 to 5, found 7",
                     [&] { fields.MaybeInteger("n", 1, 5); });
  ExpectRequestError("messages[1].x: expected a number from 0 to 2, found 3",
                     [&] { fields.MaybeNumberIn("x", 0, 2); });
  ExpectRequestError("messages[1].b: expected true or false, found \"yes\"",
                     [&] { fields.MaybeBool("b"); });
}

TEST(JsonFieldsTest, RequestsMayWriteWholeNumbersAsReals) {
  const JsonValue value = ParseJson(R"({"n": 8.0, "e": 1e3, "half": 8.5, "huge": 1e300})");
  const JsonFields fields(value, RequestOrigin());
  EXPECT_EQ(fields.MaybeInteger("n", 0, 10), 8);
  EXPECT_EQ(fields.MaybeInteger("e", 0, 1000), 1000);
  ExpectRequestError("half: expected an integer from 0 to 10, found 8.5",
                     [&] { fields.MaybeInteger("half", 0, 10); });
  ExpectRequestError("huge: expected an integer from 0 to 10, found 1e+300",
                     [&] { fields.MaybeInteger("huge", 0, 10); });
}

}  // namespace
}  // namespace thimble
