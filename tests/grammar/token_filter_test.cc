#include "grammar/token_filter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace thimble {
namespace {

class TokenFilterTest : public testing::Test {
 protected:
  static const Tokenizer& Mini() {
    static const Tokenizer tokenizer = Tokenizer::Load(THIMBLE_SOURCE_DIR "/models/mini");
    return tokenizer;
  }
  static std::vector<TokenId> MarkupIds(const std::string& markup) {
    std::vector<TokenId> ids;
    Mini().EncodeMarkup(markup, &ids);
    return ids;
  }
  static TokenFilter New(const std::string& schema, bool thinking) {
    return {Mini(), ChatMarkup::kKimiK3, thinking, JsonGrammar::FromSchema(ParseJson(schema))};
  }
  static void Accept(TokenFilter& filter, const std::string& markup) {
    for (const TokenId id : MarkupIds(markup)) {
      ASSERT_TRUE(filter.Allows(id)) << markup << " at '" << Mini().TokenBytes(id) << "'";
      filter.Accept(id);
    }
  }
  static std::vector<TokenId> Allowed(const TokenFilter& filter) {
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < Mini().vocab_size(); ++id) {
      if (filter.Allows(id)) allowed.push_back(id);
    }
    return allowed;
  }

  const TokenId close_ = MarkupIds("<|close|>")[0];
};

constexpr const char* kPerson =
    R"({"type": "object", "additionalProperties": false, "required": ["name", "old"],
        "properties": {"name": {"enum": ["Adam", "Abel", "Noë"]}, "old": {"type": "boolean"}}})";

// Every answer that the schema allows.
std::vector<std::string> People() {
  std::vector<std::string> people;
  for (const char* name : {"Adam", "Abel", "Noë"}) {
    for (const char* old : {"true", "false"}) {
      people.push_back(std::string(R"({"name":")") + name + R"(","old":)" + old + "}");
    }
  }
  return people;
}

// At each step of many answers, of all the vocabulary those tokens are allowed by which one of the
// answers can go on, tokens that span several parts of the JSON or end within a character included.
TEST_F(TokenFilterTest, AllowsWhatCanBecomeAnAnswerAndNothingElse) {
  const std::vector<std::string> people = People();
  std::mt19937 random(1);
  for (int round = 0; round < 6; ++round) {
    TokenFilter filter = New(kPerson, false);
    std::string text;
    while (true) {
      const std::vector<TokenId> allowed = Allowed(filter);
      std::vector<TokenId> expected;
      const bool whole = std::ranges::find(people, text) != people.end();
      for (TokenId id = 0; id < Mini().vocab_size(); ++id) {
        const bool is_text = !Mini().IsReserved(id);
        const std::string longer = text + std::string(Mini().TokenBytes(id));
        const bool goes_on = is_text && std::ranges::any_of(people, [&](const std::string& person) {
                               return person.starts_with(longer);
                             });
        if (goes_on || (whole && id == close_)) expected.push_back(id);
      }
      ASSERT_EQ(allowed, expected) << text;
      const TokenId id = allowed[random() % allowed.size()];
      filter.Accept(id);
      if (id == close_) break;
      text += Mini().TokenBytes(id);
    }
    EXPECT_NE(std::ranges::find(people, text), people.end()) << text;
  }
}

TEST_F(TokenFilterTest, BindsNeitherTheThoughtNorTheMarkup) {
  TokenFilter filter = New(kPerson, true);
  EXPECT_EQ(Allowed(filter).size(), Mini().vocab_size());
  Accept(filter, "Adam { was old.<|close|>think<|sep|><|open|>response");
  EXPECT_EQ(Allowed(filter).size(), Mini().vocab_size());
  Accept(filter, "<|sep|>");
  EXPECT_LT(Allowed(filter).size(), 10u);
  Accept(filter, R"({"name":"Noë","old":true})");
  EXPECT_EQ(Allowed(filter), std::vector<TokenId>{close_});
  Accept(filter, "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>");
  EXPECT_EQ(Allowed(filter).size(), Mini().vocab_size());
}

TEST_F(TokenFilterTest, NoSpecialTokenIsPartOfTheJson) {
  TokenFilter filter = New(R"({"type": "string"})", false);
  for (const char* token : {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[EOS]"}) {
    EXPECT_FALSE(filter.Allows(MarkupIds(token)[0])) << token;
  }
  // Spelled as text, it is one like any other.
  std::vector<TokenId> spelled;
  Mini().Encode("\"<|close|>\"", &spelled);
  for (const TokenId id : spelled) {
    ASSERT_TRUE(filter.Allows(id));
    filter.Accept(id);
  }
  EXPECT_TRUE(filter.Allows(close_));
  EXPECT_FALSE(filter.Allows(spelled[0]));
}

}  // namespace
}  // namespace thimble
