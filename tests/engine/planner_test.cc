#include "engine/planner.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/byte_size.h"
#include "format/published_models.h"
#include "memory/process_memory.h"
#include "support/fixed_process.h"
#include "support/sanitizers.h"

namespace thimble {
namespace {

TEST(PlannerTest, RequestsWhatTheOptionsSay) {
  const ModelConfig config = ParseModelConfig(PublishedConfig("kimi-k3"), "kimi-k3");
  EngineOptions options;
  options.context = 777;
  options.num_sessions = 3;
  options.prefill_chunk = 5;
  options.process = kFixedProcess;
  options.process->rss_bytes = 100 * kMB;
  options.process->peak_rss_bytes = 150 * kMB;
  const PlanRequest request = MakePlanRequest(config, options, 2 * kGB, 4);
  EXPECT_EQ(request.budget_bytes, 2 * kGB);
  EXPECT_EQ(request.num_threads, 4U);
  EXPECT_EQ(request.context, 777U);
  EXPECT_EQ(request.num_sessions, 3U);
  EXPECT_EQ(request.prefill_chunk, 5U);
  // With room to grow for code not yet touched and the stacks of threads.
  EXPECT_GT(request.process_bytes, 104 * kMB);
  EXPECT_LT(request.process_bytes, 116 * kMB);
  EXPECT_EQ(request.peak_bytes, 150 * kMB);
}

TEST(PlannerTest, WhatTheProcessGaveBackCountsNoMoreButBoundsTheBudget) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep what is freed";
  const ModelConfig config = ParseModelConfig(PublishedConfig("kimi-k3"), "kimi-k3");
  constexpr uint64_t kBytes = 200 * kMiB;
  std::vector<char>(kBytes, 1).clear();
  const PlanRequest request = MakePlanRequest(config, {}, 2 * kGB, 4);
  EXPECT_GE(request.peak_bytes, kBytes);
  EXPECT_LT(request.process_bytes, kBytes);
}

TEST(PlannerTest, TheDefaultBudgetLeavesAReserve) {
  EXPECT_EQ(DefaultMemoryBudget(16 * kGiB), 14 * kGiB);
  EXPECT_EQ(DefaultMemoryBudget(2 * kGiB), 2 * kGiB - 512 * kMiB);
  EXPECT_EQ(DefaultMemoryBudget(600 * kMiB), 300 * kMiB);
  EXPECT_EQ(DefaultMemoryBudget(0), 0U);
  EXPECT_GT(DefaultMemoryBudget(), 0U);
}

}  // namespace
}  // namespace thimble
