#include "model/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace thimble {
namespace {

// The router of docs/MODEL.md in double, in the plainest way.
std::vector<std::pair<uint32_t, double>> Reference(const MoeConfig& moe,
                                                   const std::vector<float>& products,
                                                   const std::vector<float>& bias) {
  std::vector<double> scores(products.begin(), products.end());
  if (moe.score == RouterScore::kSigmoid) {
    for (double& score : scores) score = 1 / (1 + std::exp(-score));
  } else {
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score);
    for (double& score : scores) score /= sum;
  }
  std::vector<double> biased(scores);
  for (size_t i = 0; i < biased.size(); ++i) biased[i] += static_cast<double>(bias[i]);
  const size_t group_size = moe.num_experts / moe.num_groups;
  std::vector<std::pair<double, size_t>> groups;
  for (size_t g = 0; g < moe.num_groups; ++g) {
    std::vector<double> members(biased.begin() + static_cast<long>(g * group_size),
                                biased.begin() + static_cast<long>((g + 1) * group_size));
    std::sort(members.rbegin(), members.rend());
    groups.emplace_back(members[0] + (group_size > 1 ? members[1] : 0), g);
  }
  std::sort(groups.rbegin(), groups.rend());
  std::vector<uint32_t> candidates;
  for (size_t rank = 0; rank < moe.top_groups; ++rank) {
    for (size_t i = 0; i < group_size; ++i) {
      candidates.push_back(static_cast<uint32_t>(groups[rank].second * group_size + i));
    }
  }
  std::sort(candidates.begin(), candidates.end(),
            [&](uint32_t a, uint32_t b) { return biased[a] > biased[b]; });
  candidates.resize(moe.top_k);
  std::sort(candidates.begin(), candidates.end());
  double sum = 0;
  for (const uint32_t expert : candidates) sum += scores[expert];
  std::vector<std::pair<uint32_t, double>> routes;
  for (const uint32_t expert : candidates) {
    const double weight = moe.renormalize && moe.top_k > 1 ? scores[expert] / sum : scores[expert];
    routes.emplace_back(expert, weight * static_cast<double>(moe.scaling_factor));
  }
  return routes;
}

std::vector<Route> Routes(const MoeConfig& moe, std::vector<float> products,
                          const std::vector<float>& bias) {
  std::vector<float> biased(moe.num_experts);
  std::vector<float> groups(moe.num_groups);
  std::vector<uint32_t> order(moe.num_experts);
  std::vector<Route> routes(moe.top_k);
  RouteToken(BestKernels(), moe, bias.data(), products.data(),
             {biased.data(), groups.data(), order.data()}, routes);
  return routes;
}

TEST(RouterTest, EqualsTheReference) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const auto& [experts, top_k, num_groups, top_groups] :
       {std::array<size_t, 4>{896, 16, 1, 1}, {24, 4, 1, 1}, {32, 6, 8, 3}, {16, 1, 1, 1}}) {
    for (const RouterScore score : {RouterScore::kSigmoid, RouterScore::kSoftmax}) {
      for (const bool renormalize : {true, false}) {
        MoeConfig moe;
        moe.num_experts = experts;
        moe.top_k = top_k;
        moe.num_groups = num_groups;
        moe.top_groups = top_groups;
        moe.score = score;
        moe.renormalize = renormalize;
        moe.scaling_factor = 2.446F;
        std::vector<float> products(experts);
        std::vector<float> bias(experts);
        for (float& value : products) value = normal(random);
        for (float& value : bias) value = 0.05F * normal(random);
        const auto expected = Reference(moe, products, bias);
        const auto found = Routes(moe, products, bias);
        ASSERT_EQ(found.size(), expected.size());
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_EQ(found[i].expert, expected[i].first);
          EXPECT_NEAR(found[i].weight, expected[i].second, 1e-6 * expected[i].second);
        }
      }
    }
  }
}

TEST(RouterTest, OfEqualExpertsTheFirstAreChosen) {
  MoeConfig moe;
  moe.num_experts = 12;
  moe.top_k = 3;
  const auto routes = Routes(moe, std::vector<float>(12, 0.25F), std::vector<float>(12, 0.0F));
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(routes[i].expert, i);
    EXPECT_FLOAT_EQ(routes[i].weight, 1.0F / 3.0F);
  }
}

TEST(RouterTest, TheBiasChoosesButDoesNotWeigh) {
  MoeConfig moe;
  moe.num_experts = 4;
  moe.top_k = 2;
  const auto routes = Routes(moe, {3, 2, 0, 0}, {0, 0, 0, 5});
  EXPECT_EQ(routes[0].expert, 0U);
  EXPECT_EQ(routes[1].expert, 3U);
  const float first = 1 / (1 + std::exp(-3.0F));
  EXPECT_NEAR(routes[1].weight, 0.5F / (first + 0.5F), 1e-6F);
}

}  // namespace
}  // namespace thimble
