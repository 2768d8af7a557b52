#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "base/error.h"
#include "support/expect_error.h"

namespace thimble {
namespace {

class SamplerTest : public ::testing::Test {
 protected:
  std::vector<TokenId> Draw(const SamplingOptions& options, const std::vector<float>& logits,
                            size_t count, const std::vector<TokenId>& history = {},
                            size_t num_prompt = 0) {
    Sampler sampler(options, logits.size(), BestKernels(), budget_);
    std::vector<TokenId> ids;
    for (size_t i = 0; i < count; ++i) ids.push_back(sampler.Sample(logits, history, num_prompt));
    return ids;
  }
  std::set<TokenId> Kept(const SamplingOptions& options, const std::vector<float>& logits) {
    const auto ids = Draw(options, logits, 4000);
    return {ids.begin(), ids.end()};
  }

  MemoryBudget budget_{1 << 20};
  // Probabilities 0.4, 0.3, 0.2, 0.1, in no order.
  const std::vector<float> logits_ = {std::log(0.2F), std::log(0.4F), std::log(0.1F),
                                      std::log(0.3F)};
};

SamplingOptions Warm() {
  SamplingOptions options;
  options.temperature = 1;
  return options;
}

TEST_F(SamplerTest, GreedyTakesTheLikeliestAndOfEqualOnesTheFirst) {
  EXPECT_EQ(Draw({}, logits_, 2), (std::vector<TokenId>{1, 1}));
  EXPECT_EQ(Draw({}, {1, 3, 3, 2}, 1), std::vector<TokenId>{1});
}

TEST_F(SamplerTest, FrequenciesFollowTheProbabilities) {
  std::map<TokenId, double> counts;
  constexpr size_t kDraws = 40000;
  for (const TokenId id : Draw(Warm(), logits_, kDraws)) ++counts[id];
  const double expected[] = {0.2, 0.4, 0.1, 0.3};
  for (TokenId id = 0; id < 4; ++id) {
    // Five standard deviations of a binomial count.
    const double p = expected[id];
    EXPECT_NEAR(counts[id] / kDraws, p, 5 * std::sqrt(p * (1 - p) / kDraws)) << id;
  }
}

TEST_F(SamplerTest, TheSameSeedGivesTheSameTokensAnotherSeedOthers) {
  SamplingOptions options = Warm();
  options.seed = 11;
  const auto first = Draw(options, logits_, 100);
  EXPECT_EQ(Draw(options, logits_, 100), first);
  options.seed = 12;
  EXPECT_NE(Draw(options, logits_, 100), first);
}

TEST_F(SamplerTest, TopKKeepsTheLikeliest) {
  SamplingOptions options = Warm();
  options.top_k = 2;
  EXPECT_EQ(Kept(options, logits_), (std::set<TokenId>{1, 3}));
  options.top_k = 100;
  EXPECT_EQ(Kept(options, logits_), (std::set<TokenId>{0, 1, 2, 3}));
}

TEST_F(SamplerTest, TopPKeepsTheFewestThatReachP) {
  SamplingOptions options = Warm();
  options.top_p = 0.65F;
  EXPECT_EQ(Kept(options, logits_), (std::set<TokenId>{1, 3}));
  options.top_p = 0.75F;
  EXPECT_EQ(Kept(options, logits_), (std::set<TokenId>{0, 1, 3}));
  options.top_p = 0.01F;
  EXPECT_EQ(Kept(options, logits_), (std::set<TokenId>{1}));
}

TEST_F(SamplerTest, TopPIsMeasuredAgainstWhatTopKKept) {
  SamplingOptions options = Warm();
  options.top_k = 2;
  options.top_p = 0.55F;  // 0.4 of 0.7 is 0.571
  EXPECT_EQ(Kept(options, logits_), (std::set<TokenId>{1}));
}

TEST_F(SamplerTest, MinPIsMeasuredAgainstTheLikeliest) {
  SamplingOptions options = Warm();
  options.min_p = 0.6F;
  EXPECT_EQ(Kept(options, logits_), (std::set<TokenId>{1, 3}));
}

TEST_F(SamplerTest, ThePenaltyCountsOnceForEachToken) {
  SamplingOptions options;
  options.repeat_penalty = 2;
  EXPECT_EQ(Draw(options, {3, 4, 1}, 1, {1, 1, 1, 1}), std::vector<TokenId>{0});  // 3 against 2
  EXPECT_EQ(Draw(options, {-3, -2, -9}, 1, {1}), std::vector<TokenId>{0});        // -3 against -4
}

TEST_F(SamplerTest, FrequencyAndPresenceCountTheTokensOfTheAnswer) {
  const std::vector<float> logits = {3, 4, 2.5F};
  SamplingOptions options;
  options.frequency_penalty = 0.4F;
  EXPECT_EQ(Draw(options, logits, 1, {1, 1}), std::vector<TokenId>{1});     // 3.2 against 3
  EXPECT_EQ(Draw(options, logits, 1, {1, 1, 1}), std::vector<TokenId>{0});  // 2.8 against 3
  // Tokens of the prompt do not count.
  EXPECT_EQ(Draw(options, logits, 1, {1, 1, 1}, 1), std::vector<TokenId>{1});
  options = {};
  options.presence_penalty = 0.9F;
  EXPECT_EQ(Draw(options, logits, 1, {1, 1, 1}), std::vector<TokenId>{1});  // once
  options.presence_penalty = 1.1F;
  EXPECT_EQ(Draw(options, logits, 1, {1}), std::vector<TokenId>{0});
  EXPECT_EQ(Draw(options, logits, 1, {1}, 1), std::vector<TokenId>{1});
  // Below 0 they encourage.
  options.presence_penalty = -2;
  EXPECT_EQ(Draw(options, logits, 1, {2}), std::vector<TokenId>{2});
}

TEST_F(SamplerTest, PenaltiesAddUpAndLeaveNothingBehind) {
  SamplingOptions options;
  options.repeat_penalty = 2;
  options.frequency_penalty = 0.5F;
  options.presence_penalty = 0.25F;
  Sampler sampler(options, 2, BestKernels(), budget_);
  // 8 / 2 - 2 * 0.5 - 0.25 = 2.75
  const std::vector<TokenId> twice = {0, 0};
  EXPECT_EQ(sampler.Sample(std::vector<float>{8, 2.7F}, twice, 0), 0U);
  EXPECT_EQ(sampler.Sample(std::vector<float>{8, 2.8F}, twice, 0), 1U);
  EXPECT_EQ(sampler.Sample(std::vector<float>{8, 2.8F}, {}, 0), 0U);
}

TEST_F(SamplerTest, ABiasMovesItsToken) {
  SamplingOptions options;
  options.logit_bias = {{2, 100}};
  EXPECT_EQ(Draw(options, logits_, 1), std::vector<TokenId>{2});
  options = Warm();
  options.logit_bias = {{1, -100}, {0, -100}};
  EXPECT_EQ(Kept(options, logits_), (std::set<TokenId>{2, 3}));
}

TEST_F(SamplerTest, HotAndColdTemperatures) {
  SamplingOptions options = Warm();
  options.temperature = 0.01F;
  EXPECT_EQ(Kept(options, logits_), std::set<TokenId>{1});
  options.temperature = 100;
  EXPECT_EQ(Kept(options, logits_).size(), 4U);
}

TEST_F(SamplerTest, OptionsOutOfRangeAreNamed) {
  const auto refuse = [&](const char* name, SamplingOptions options) {
    ExpectError(ErrorCode::kUsage, {name}, [&] { Draw(options, logits_, 1); });
  };
  SamplingOptions options;
  options.temperature = -1;
  refuse("--temp", options);
  options = {};
  options.top_p = 0;
  refuse("--top-p", options);
  options = {};
  options.min_p = 1.5F;
  refuse("--min-p", options);
  options = {};
  options.repeat_penalty = 0;
  refuse("--repeat-penalty", options);
  options = {};
  options.frequency_penalty = 2.5F;
  refuse("frequency_penalty", options);
  options = {};
  options.presence_penalty = std::numeric_limits<float>::quiet_NaN();
  refuse("presence_penalty", options);
  options = {};
  options.logit_bias = {{0, -101}};
  refuse("logit_bias", options);
  options.logit_bias = {{4, 1}};
  refuse("token 4", options);
}

TEST_F(SamplerTest, LogitsThatAreNotFiniteAreAnError) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ExpectError(ErrorCode::kRuntime, {"not finite"}, [&] { Draw({}, {1, bad, 2}, 1); });
  }
}

}  // namespace
}  // namespace thimble
