#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/error.h"
#include "support/small_ranks.h"

namespace thimble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Ids = std::vector<TokenId>;

/// Ranks 256 to 262; the slots follow.
const std::vector<std::string> kMerges = {"he", "ll", "hell", "hello", " w", "or", "\xc3\xa9"};
constexpr TokenId kNumRanks = 263;

const char kConfig[] = R"({"added_tokens_decoder": {
    "263": {"content": "[BOS]", "special": true},
    "265": {"content": "<|end_of_msg|>", "special": true},
    "266": {"content": "<|open|>", "special": false},
    "267": {"content": "<|close|>", "special": false},
    "268": {"content": "<|sep|>", "special": false},
    "269": {"content": "<|sep|>long"}}})";

Tokenizer Small(std::optional<std::string_view> config = kConfig) {
  const std::string ranks = SmallRankFile(kMerges);
  return Tokenizer::Parse({.ranks = ranks, .config = config, .directory = "small"});
}

Ids Encode(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.Encode(text, &ids);
  return ids;
}

Ids EncodeMarkup(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.EncodeMarkup(text, &ids);
  return ids;
}

std::string MessageFor(std::string_view config) {
  try {
    Small(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    return error.what();
  }
  ADD_FAILURE() << "accepted " << config;
  return "";
}

TEST(TokenizerTest, MergesByRank) {
  const Tokenizer tokenizer = Small();
  EXPECT_THAT(Encode(tokenizer, "hello"), ElementsAre(259));
  EXPECT_THAT(Encode(tokenizer, "hell"), ElementsAre(258));
  EXPECT_THAT(Encode(tokenizer, "hello world"), ElementsAre(259, 260, 261, 'l', 'd'));
  EXPECT_THAT(Encode(tokenizer, "hellll"), ElementsAre(258, 257)) << "the leftmost of equals";
}

TEST(TokenizerTest, EmptyTextHasNoIds) {
  EXPECT_THAT(Encode(Small(), ""), IsEmpty());
  EXPECT_THAT(EncodeMarkup(Small(), ""), IsEmpty());
  EXPECT_EQ(Small().Decode({}), "");
}

TEST(TokenizerTest, AppendsToTheGivenIds) {
  Ids ids = {7};
  Small().Encode("he", &ids);
  EXPECT_THAT(ids, ElementsAre(7, 256));
}

TEST(TokenizerTest, SlotsFollowTheRanks) {
  const Tokenizer tokenizer = Small();
  EXPECT_EQ(tokenizer.num_ranks(), kNumRanks);
  EXPECT_EQ(tokenizer.vocab_size(), kNumRanks + 256);
  EXPECT_EQ(tokenizer.FindSpecial("[BOS]"), kNumRanks);
  EXPECT_EQ(tokenizer.FindSpecial("<|reserved_token_264|>"), kNumRanks + 1);
  EXPECT_EQ(tokenizer.FindSpecial("<|reserved_token_263|>"), std::nullopt) << "it has a name";
  EXPECT_EQ(tokenizer.FindSpecial("hello"), std::nullopt);
  EXPECT_FALSE(tokenizer.IsReserved(kNumRanks - 1));
  EXPECT_TRUE(tokenizer.IsReserved(kNumRanks));
  EXPECT_TRUE(tokenizer.IsReserved(kNumRanks + 255));
  EXPECT_FALSE(tokenizer.IsReserved(kNumRanks + 256));
}

TEST(TokenizerTest, SpecialIsWhatTheConfigSays) {
  const Tokenizer tokenizer = Small();
  EXPECT_TRUE(tokenizer.IsSpecial(263));
  EXPECT_TRUE(tokenizer.IsSpecial(264)) << "no name";
  EXPECT_FALSE(tokenizer.IsSpecial(266));
  EXPECT_FALSE(tokenizer.IsSpecial(0));
  EXPECT_FALSE(tokenizer.IsSpecial(kNumRanks + 256));
}

TEST(TokenizerTest, WithoutConfigAllSlotsAreReservedTokens) {
  const Tokenizer tokenizer = Small(std::nullopt);
  EXPECT_FALSE(tokenizer.has_names());
  EXPECT_EQ(tokenizer.TokenBytes(263), "<|reserved_token_263|>");
  EXPECT_EQ(tokenizer.TokenBytes(518), "<|reserved_token_518|>");
}

TEST(TokenizerTest, TextModeRecognisesNoSpelling) {
  for (const TokenId id : Encode(Small(), "<|open|>[BOS]<|reserved_token_264|>")) {
    EXPECT_LT(id, kNumRanks);
  }
}

TEST(TokenizerTest, MarkupModeRecognisesAllSpellings) {
  const Tokenizer tokenizer = Small();
  EXPECT_THAT(EncodeMarkup(tokenizer, "he<|open|>he[BOS]<|reserved_token_264|>he"),
              ElementsAre(256, 266, 256, 263, 264, 256));
  EXPECT_THAT(EncodeMarkup(tokenizer, "<<|sep|>"), ElementsAre('<', 268));
  EXPECT_THAT(EncodeMarkup(tokenizer, "<|sep|>lon"), ElementsAre(268, 'l', 'o', 'n'));
  EXPECT_THAT(EncodeMarkup(tokenizer, "<|sep|>long"), ElementsAre(269)) << "the longest wins";
}

/// The text before a spelling is a text of its own: here its spaces are the last thing in it.
TEST(TokenizerTest, ASpellingEndsTheTextBeforeIt) {
  const std::string ranks = SmallRankFile({"  "});
  const Tokenizer tokenizer = Tokenizer::Parse({.ranks = ranks, .config = {}, .directory = "s"});
  EXPECT_THAT(EncodeMarkup(tokenizer, "  <|reserved_token_257|>"), ElementsAre(256, 257));
  EXPECT_THAT(EncodeMarkup(tokenizer, "  <"), ElementsAre(' ', ' ', '<'));
}

TEST(TokenizerTest, DecodesReservedSlotsAsTheirSpelling) {
  const Ids ids = {259, 266, 255, 264};
  EXPECT_EQ(Small().Decode(ids), "hello<|open|>\xff<|reserved_token_264|>");
}

TEST(TokenizerTest, RefusesIdsBehindTheVocabulary) {
  const Tokenizer tokenizer = Small();
  EXPECT_THROW(tokenizer.TokenBytes(kNumRanks + 256), Error);
  EXPECT_THROW(tokenizer.Decode(Ids{0, ~TokenId{0}}), Error);
  try {
    tokenizer.TokenBytes(1000);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("below 519, found 1000"));
  }
}

TEST(TokenizerTest, InvalidBytesBecomeByteTokens) {
  const Tokenizer tokenizer = Small();
  EXPECT_THAT(Encode(tokenizer, "he\xff\xfehe"), ElementsAre(256, 0xff, 0xfe, 256));
  EXPECT_THAT(Encode(tokenizer, "\xc3\xa9\xc3"), ElementsAre(262, 0xc3));
  EXPECT_THAT(Encode(tokenizer, "\xed\xa0\x80"), ElementsAre(0xed, 0xa0, 0x80)) << "a surrogate";
  EXPECT_THAT(Encode(tokenizer, "\xe2\x82"), ElementsAre(0xe2, 0x82)) << "cut short";
  EXPECT_THAT(EncodeMarkup(tokenizer, "\x80<|sep|>"), ElementsAre(0x80, 268));
}

TEST(TokenizerTest, AnyBytesSurviveARoundTrip) {
  const Tokenizer tokenizer = Small();
  std::mt19937 random(1);
  const std::string_view pieces[] = {
      "hello",        " w", "\xc3\xa9", "\xc3", "\xa9", "\xf0\x9f", "<|sep|>",
      "\xe6\xbc\xa2", "\n", " ",        "\xff", "'s",   "12"};
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    for (size_t i = random() % 12; i > 0; --i) text += pieces[random() % std::size(pieces)];
    ASSERT_EQ(tokenizer.Decode(Encode(tokenizer, text)), text);
    ASSERT_EQ(tokenizer.Decode(EncodeMarkup(tokenizer, text)), text);
  }
}

TEST(TokenizerTest, SurvivesMoves) {
  Tokenizer first = Small();
  const std::string_view bytes = first.TokenBytes(266);
  Tokenizer second = std::move(first);
  EXPECT_EQ(bytes, "<|open|>");
  EXPECT_EQ(second.TokenBytes(266).data(), bytes.data());
  EXPECT_THAT(EncodeMarkup(second, "hello<|open|>"), ElementsAre(259, 266));
}

TEST(TokenizerTest, ServesManyThreads) {
  const Tokenizer tokenizer = Small();
  const Ids expected = EncodeMarkup(tokenizer, "hello world<|sep|> hello");
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        equal[t] += EncodeMarkup(tokenizer, "hello world<|sep|> hello") == expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, testing::Each(200));
}

TEST(TokenizerTest, RequiresTheMarkersOfK3) {
  EXPECT_NO_THROW(Small().RequireMarkup());
  const Tokenizer other = Small(R"({"added_tokens_decoder": {
      "265": {"content": "<|end_of_msg|>"}, "266": {"content": "<|im_user|>"}}})");
  try {
    other.RequireMarkup();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    EXPECT_THAT(error.what(), HasSubstr("small/tokenizer_config.json"));
    EXPECT_THAT(error.what(), HasSubstr("expected \"<|open|>\" for id 266, found \"<|im_user|>\""));
  }
}

TEST(TokenizerConfigTest, RefusesWhatItCannotUse) {
  EXPECT_THAT(MessageFor("{"), HasSubstr("small/tokenizer_config.json: expected JSON"));
  EXPECT_THAT(MessageFor("[]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(MessageFor("{}"), HasSubstr("added_tokens_decoder"));
  EXPECT_THAT(MessageFor(R"({"added_tokens_decoder": []})"), HasSubstr("expected an object"));
  EXPECT_THAT(MessageFor(R"({"added_tokens_decoder": {"1": {"content": "x"}}})"),
              HasSubstr("expected ids from 263 to 518"));
  EXPECT_THAT(MessageFor(R"({"added_tokens_decoder": {"519": {"content": "x"}}})"),
              HasSubstr("found \"519\""));
  EXPECT_THAT(MessageFor(R"({"added_tokens_decoder": {"26x": {"content": "x"}}})"),
              HasSubstr("found \"26x\""));
  EXPECT_THAT(MessageFor(R"({"added_tokens_decoder": {"263": 1}})"), HasSubstr(".263': expected"));
  EXPECT_THAT(MessageFor(R"({"added_tokens_decoder": {"263": {}}})"), HasSubstr("263.content"));
  EXPECT_THAT(MessageFor(R"({"added_tokens_decoder": {"263": {"content": ""}}})"),
              HasSubstr("263.content"));
  EXPECT_THAT(MessageFor(R"({"added_tokens_decoder": {"263": {"content": "x", "special": 1}}})"),
              HasSubstr("263.special"));
  EXPECT_THAT(MessageFor(R"({"added_tokens_decoder": {"263": {"content": "x"},
                                                      "270": {"content": "x"}}})"),
              HasSubstr("found \"x\" for ids 263 and 270"));
}

// A rank file that is cut between lines made the names seem wrong.
TEST(TokenizerConfigTest, AShortRankFileIsBlamedBeforeTheNames) {
  const std::string ranks = SmallRankFile({"ab"});
  try {
    Tokenizer::Parse({.ranks = ranks,
                      .config = R"({"added_tokens_decoder": {"600": {"content": "x"}}})",
                      .directory = "small",
                      .vocab_size = 1000});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("small/tiktoken.model: expected 1000 ids"));
    EXPECT_THAT(error.what(), HasSubstr("found 513: 257 ranks and 256 reserved"));
    EXPECT_THAT(error.what(), HasSubstr("cut short"));
  }
}

class TokenizerLoadTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = std::filesystem::path(testing::TempDir()) / (std::string("tokenizer_") + test->name());
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Write(const char* name, std::string_view contents) {
    std::ofstream(dir_ / name, std::ios::binary) << contents;
  }

  std::filesystem::path dir_;
};

TEST_F(TokenizerLoadTest, ReadsBothFiles) {
  Write("tiktoken.model", SmallRankFile(kMerges));
  Write("tokenizer_config.json", kConfig);
  const Tokenizer tokenizer = Tokenizer::Load(dir_);
  EXPECT_TRUE(tokenizer.has_names());
  EXPECT_THAT(EncodeMarkup(tokenizer, "hello<|open|>"), ElementsAre(259, 266));
}

TEST_F(TokenizerLoadTest, NeedsNoConfig) {
  Write("tiktoken.model", SmallRankFile(kMerges));
  EXPECT_FALSE(Tokenizer::Load(dir_).has_names());
}

TEST_F(TokenizerLoadTest, NamesTheMissingFile) {
  try {
    Tokenizer::Load(dir_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    EXPECT_THAT(error.what(), HasSubstr((dir_ / "tiktoken.model").string()));
  }
}

TEST_F(TokenizerLoadTest, NamesFileAndLineOfADamage) {
  Write("tiktoken.model", "AA== 0\nAQ== 7\n");
  try {
    Tokenizer::Load(dir_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("tiktoken.model:2: expected rank 1, found \"7\""));
  }
}

}  // namespace
}  // namespace thimble
