#include "residency/memory_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_size.h"
#include "model/decoder.h"
#include "residency/checkpoint.h"
#include "residency/expert_cache.h"
#include "residency/trunk_stream.h"
#include "support/expect_error.h"
#include "support/fault_reader.h"
#include "support/shared_data.h"

namespace thimble {
namespace {

constexpr size_t kMaxChunk = 2048;

// The smallest budget, as a refusal gives it.
uint64_t SmallestBudget(const ModelConfig& config, const WeightSizes& sizes, PlanRequest request) {
  request.budget_bytes = 1;
  try {
    PlanMemory(config, sizes, request);
  } catch (const OverBudgetError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOverBudget);
    for (const char* part : {"1 B", "session state", "workspace", "in all"}) {
      EXPECT_THAT(error.what(), testing::HasSubstr(part));
    }
    // The message names the same figure, as it is typed.
    EXPECT_THAT(error.what(),
                testing::HasSubstr(fmt::format("--memory {}M:", error.smallest_budget() / kMB)));
    EXPECT_EQ(error.smallest_budget() % kMB, 0U);
    return error.smallest_budget();
  }
  ADD_FAILURE() << "a budget of 1 byte was enough";
  return 0;
}

uint64_t SumOf(const std::map<std::string, uint64_t>& items) {
  uint64_t sum = 0;
  for (const auto& [name, bytes] : items) sum += bytes;
  return sum;
}

// ---- the full Kimi K3, without its weights

class KimiK3PlanTest : public testing::Test {
 protected:
  void SetUp() override {
    THIMBLE_NEED_SHARED("data/kimi-k3/config.json");
    config_ = ReadModelConfig(SharedDir() / "data/kimi-k3");
    // From the published shapes.
    sizes_.block_bytes = 32 * kMiB;
    sizes_.min_block_bytes = 256 * 512 * 2 + BlockReader::kAlignment;  // one head of kv_b
    sizes_.trunk_bytes = 111'100'000'000 / BlockReader::kAlignment * BlockReader::kAlignment;
    sizes_.expert_slot_bytes = 17'547'264 + BlockReader::kAlignment;
    sizes_.num_experts = 82'432;
    request_.process_bytes = 30 * kMB;
    request_.sampler_bytes = 2 * kMB;
    request_.context = 4096;
    request_.num_threads = 2;
  }

  MemoryPlan Plan(uint64_t budget) {
    request_.budget_bytes = budget;
    return PlanMemory(config_, sizes_, request_);
  }
  uint64_t Floor() const { return SmallestBudget(config_, sizes_, request_); }
  // Budgets from the floor to 2 TB.
  std::vector<uint64_t> Ladder() {
    std::vector<uint64_t> budgets;
    for (uint64_t budget = Floor(); budget < 2000 * kGB; budget += budget / 50) {
      budgets.push_back(budget);
    }
    budgets.push_back(2000 * kGB);
    return budgets;
  }

  // What every plan keeps.
  void ExpectSound(const MemoryPlan& plan, uint64_t budget) {
    EXPECT_LE(plan.TotalBytes(), budget);
    EXPECT_EQ(plan.TotalBytes(), SumOf(plan.items));
    EXPECT_GE(plan.prefill_chunk, 1U);
    EXPECT_LE(plan.prefill_chunk, request_.prefill_chunk.value_or(kMaxChunk));
    EXPECT_GE(plan.block_bytes, sizes_.min_block_bytes);
    EXPECT_LE(plan.block_bytes, std::max(sizes_.block_bytes, sizes_.min_block_bytes));
    EXPECT_EQ(plan.block_bytes % BlockReader::kAlignment, 0U);
    if (plan.ring_slots == 0) {
      EXPECT_EQ(plan.pinned_bytes, sizes_.trunk_bytes);
      EXPECT_EQ(plan.block_bytes, sizes_.block_bytes);
    } else {
      EXPECT_GE(plan.ring_slots, 2U);
    }
    EXPECT_LE(plan.pinned_bytes, sizes_.trunk_bytes);
    EXPECT_GE(plan.expert_window, 1U);
    EXPECT_LE(plan.cached_experts, sizes_.num_experts);
    EXPECT_EQ(plan.items.at("trunk ring"), plan.ring_slots * plan.block_bytes);
    EXPECT_EQ(plan.items.at("pinned trunk"), plan.pinned_bytes);
    EXPECT_EQ(plan.items.at("expert slots"),
              (plan.expert_window + plan.cached_experts) * sizes_.expert_slot_bytes);
    EXPECT_EQ(plan.items.at("session state"), request_.num_sessions * SessionBytes());
    EXPECT_EQ(plan.items.at("logits"), request_.num_sessions * plan.logit_rows * 655'360);
    // Of each token at least the nine candidates that a residual mix may have, of 7168 floats.
    const size_t tokens = std::max(plan.prefill_chunk, request_.num_sessions);
    EXPECT_GE(plan.items.at("workspace"), tokens * 9 * 7168 * 4);
    EXPECT_LE(plan.items.at("workspace"), tokens * 3 * kMB + 16 * kMB);
  }
  // What docs/MODEL.md says of K3: 69 KDA layers, each with a state of 96 x 128 x 128 floats and a
  // history of 3 x 3 x 12,288, and 24 MLA layers with 576 numbers of each token.
  uint64_t SessionBytes() const {
    constexpr uint64_t kKdaBytes = 464'633'856;
    const std::map<LatentFormat, uint64_t> row_bytes = {
        {LatentFormat::kF32, 2304}, {LatentFormat::kBF16, 1152}, {LatentFormat::kFP8, 578}};
    const uint64_t latents = request_.context * row_bytes.at(request_.latents);
    return kKdaBytes + 24 * ((latents + 63) / 64 * 64);
  }

  ModelConfig config_;
  WeightSizes sizes_;
  PlanRequest request_;
};

TEST_F(KimiK3PlanTest, RunsInUnderOneAndAHalfGigabytes) {
  EXPECT_LT(Floor(), 1'500'000'000U);
  EXPECT_EQ(config_.num_layers(), 93U);
}

TEST_F(KimiK3PlanTest, WorksWithTheVeryBudgetThatARefusalNames) {
  for (const size_t context : {1, 4096, 100'000}) {
    for (const std::optional<size_t> chunk : {std::optional<size_t>(), std::optional<size_t>(64)}) {
      for (const size_t sessions : {1, 3}) {
        request_.context = context;
        request_.prefill_chunk = chunk;
        request_.num_sessions = sessions;
        const uint64_t floor = Floor();
        ExpectSound(Plan(floor), floor);
        EXPECT_THROW(Plan(floor - kMB * 3 / 2), Error);
      }
    }
  }
}

TEST_F(KimiK3PlanTest, NoBudgetMayBeBelowWhatTheProcessHasBeen) {
  const uint64_t before = Floor();
  request_.peak_bytes = before - kMB;
  EXPECT_EQ(Floor(), before);
  request_.peak_bytes = before + 100 * kMB;
  EXPECT_GE(Floor(), request_.peak_bytes);
  EXPECT_LE(Floor(), request_.peak_bytes + kMB);
  ExpectError(ErrorCode::kOverBudget, {"opening the model"}, [&] { Plan(before); });
  EXPECT_LE(Plan(request_.peak_bytes).TotalBytes(), request_.peak_bytes);
}

TEST_F(KimiK3PlanTest, NarrowLatentsLeaveMemoryForWeights) {
  request_.context = 131'072;
  const uint64_t budget = 32 * kGB;
  const MemoryPlan wide = Plan(budget);
  for (const LatentFormat format : {LatentFormat::kBF16, LatentFormat::kFP8}) {
    request_.latents = format;
    const MemoryPlan narrow = Plan(budget);
    ExpectSound(narrow, budget);
    const uint64_t saved = wide.items.at("session state") - narrow.items.at("session state");
    EXPECT_GE(saved, 24U * 576 * 2 * request_.context);
    EXPECT_GT(narrow.pinned_bytes, wide.pinned_bytes + saved / 2);
  }
}

TEST_F(KimiK3PlanTest, LeavesRoomForPageTables) {
  for (const uint64_t budget : Ladder()) {
    SCOPED_TRACE(budget);
    const MemoryPlan plan = Plan(budget);
    ExpectSound(plan, budget);
    const uint64_t weights =
        plan.items.at("trunk ring") + plan.items.at("pinned trunk") + plan.items.at("expert slots");
    EXPECT_GE(plan.items.at("page tables"), weights / 512);
  }
}

TEST_F(KimiK3PlanTest, NeverPassesAnyBudget) {
  for (const uint64_t budget : Ladder()) {
    SCOPED_TRACE(budget);
    ExpectSound(Plan(budget), budget);
  }
}

TEST_F(KimiK3PlanTest, LeavesNoMemoryUnusedThatAnExpertWouldFit) {
  for (const uint64_t budget : Ladder()) {
    SCOPED_TRACE(budget);
    const MemoryPlan plan = Plan(budget);
    const uint64_t left = budget - plan.TotalBytes();
    if (plan.cached_experts == sizes_.num_experts) continue;
    EXPECT_LT(left, sizes_.expert_slot_bytes);
  }
}

// Once window, blocks and chunk have their full size, more memory never means less of anything.
// Below that one part may give way to another that comes before it: a chunk to a wider window.
TEST_F(KimiK3PlanTest, KeepsMoreWithMoreMemory) {
  MemoryPlan last;
  size_t num_settled = 0;
  for (const uint64_t budget : Ladder()) {
    SCOPED_TRACE(budget);
    const MemoryPlan plan = Plan(budget);
    EXPECT_GE(plan.expert_window, last.expert_window);
    const bool settled = plan.prefill_chunk == kMaxChunk && plan.block_bytes == sizes_.block_bytes;
    EXPECT_TRUE(settled || num_settled == 0);
    if (settled && num_settled++ > 0) {
      EXPECT_GE(plan.pinned_bytes, last.pinned_bytes);
      EXPECT_GE(plan.cached_experts, last.cached_experts);
    }
    last = plan;
  }
  EXPECT_GT(num_settled, 50U);
}

TEST_F(KimiK3PlanTest, GivesThePartsTheirFullSizeWhenThereIsPlenty) {
  const MemoryPlan plan = Plan(2000 * kGB);
  EXPECT_EQ(plan.prefill_chunk, kMaxChunk);
  EXPECT_EQ(plan.ring_slots, 0U);
  EXPECT_EQ(plan.pinned_bytes, sizes_.trunk_bytes);
  EXPECT_EQ(plan.cached_experts, sizes_.num_experts);
}

TEST_F(KimiK3PlanTest, PinsTheTrunkBeforeItCachesExperts) {
  for (const uint64_t budget : Ladder()) {
    const MemoryPlan plan = Plan(budget);
    EXPECT_TRUE(plan.cached_experts == 0 || plan.pinned_bytes == sizes_.trunk_bytes) << budget;
  }
}

TEST_F(KimiK3PlanTest, TakesTheChunkThatWasAskedFor) {
  for (const size_t chunk : {1, 7, 64, 512}) {
    request_.prefill_chunk = chunk;
    for (const uint64_t budget : {8 * kGB, 64 * kGB, 1000 * kGB}) {
      const MemoryPlan plan = Plan(budget);
      EXPECT_EQ(plan.prefill_chunk, chunk);
      ExpectSound(plan, budget);
    }
  }
}

TEST_F(KimiK3PlanTest, NeedsNoWiderChunkThanTheContext) {
  request_.context = 20;
  EXPECT_LE(Plan(100 * kGB).prefill_chunk, 20U);
}

TEST_F(KimiK3PlanTest, HoldsALogitRowForEachTokenOfAChunkWhereAllAreWanted) {
  request_.all_logits = true;
  for (const uint64_t budget : Ladder()) {
    const MemoryPlan plan = Plan(budget);
    ExpectSound(plan, budget);
    EXPECT_GE(plan.logit_rows, plan.prefill_chunk);
    EXPECT_LE(plan.items.at("logits"), 64 * kMiB);
  }
  request_.prefill_chunk = 512;
  EXPECT_EQ(Plan(100 * kGB).prefill_chunk, 64 * kMiB / (config_.vocab_size * 4));
}

TEST_F(KimiK3PlanTest, CountsEachSession) {
  request_.num_sessions = 4;
  const MemoryPlan plan = Plan(64 * kGB);
  ExpectSound(plan, 64 * kGB);
  EXPECT_EQ(plan.logit_rows, 1U);
  EXPECT_EQ(plan.items.at("sampler"), 8 * kMB);
}

// ---- a small model, with its weights

class SmallPlanTest : public testing::TestWithParam<Architecture> {
 protected:
  const Checkpoint& checkpoint_ = SmallCheckpoint(GetParam());
  const WeightSizes sizes_ = MeasureWeights(checkpoint_.config(), checkpoint_.store());
};

TEST_P(SmallPlanTest, MeasuresWhatTheStoreHolds) {
  const ModelConfig& config = checkpoint_.config();
  EXPECT_EQ(sizes_.num_experts, checkpoint_.MoeLayers().size() * config.moe.num_experts);
  EXPECT_EQ(sizes_.expert_slot_bytes,
            ExpertCache::SlotBytes(config, checkpoint_.store()) + ExpertCache::SlotTableBytes());
  TrunkSchedule schedule;
  MeasureWeights(config, LayOutWeights(config, checkpoint_.store()), &schedule);
  EXPECT_EQ(schedule.bytes, sizes_.trunk_bytes);
  EXPECT_EQ(schedule.TableBytes(), sizes_.schedule_bytes);
  EXPECT_GE(sizes_.block_bytes, sizes_.min_block_bytes);
  EXPECT_EQ(sizes_.block_bytes % BlockReader::kAlignment, 0U);
  uint64_t data_bytes = 0;
  for (const TrunkTensor& tensor : checkpoint_.Trunk(true)) data_bytes += tensor.extent.Bytes();
  EXPECT_GE(sizes_.trunk_bytes, data_bytes);
}

// What the parts are charged is what the plan says, at every budget.
TEST_P(SmallPlanTest, IsWhatThePartsAreCharged) {
  const ModelConfig& config = checkpoint_.config();
  const TensorStore& store = checkpoint_.store();
  PlanRequest request;
  request.context = 64;
  request.process_bytes = 1000;
  const uint64_t floor = SmallestBudget(config, sizes_, request);
  InstantReader reader(checkpoint_.paths());
  ThreadPool pool(request.num_threads);
  for (uint64_t budget_bytes = floor; budget_bytes < 30 * kMB; budget_bytes += kMB / 8) {
    SCOPED_TRACE(budget_bytes);
    request.budget_bytes = budget_bytes;
    const MemoryPlan plan = PlanMemory(config, sizes_, request);
    ASSERT_LE(plan.TotalBytes(), budget_bytes);
    MemoryBudget budget(budget_bytes);
    ReadMonitor monitor;
    const Reservation process = budget.Reserve("process", plan.items.at("process"));
    TrunkStream trunk(config, store, TrunkSchedule::Build(config, store, plan.block_bytes),
                      {plan.ring_slots, plan.pinned_bytes}, BestKernels(), reader, monitor, budget);
    ExpertCache experts(config, store, {plan.expert_window, plan.cached_experts}, reader, monitor,
                        budget);
    const StateCache state(config, request.context, budget);
    const Decoder decoder(config, {plan.prefill_chunk, 1, request.num_threads, request.latents},
                          BestKernels(), pool, trunk, experts, budget);
    EXPECT_EQ(budget.Ledger().at("workspace"), plan.items.at("workspace"));
    EXPECT_EQ(budget.Ledger().at("session state"), plan.items.at("session state"));
    for (const auto& [name, bytes] : budget.Ledger()) {
      ASSERT_TRUE(plan.items.contains(name)) << name;
      EXPECT_LE(bytes, plan.items.at(name)) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SmallPlanTest,
                         testing::Values(Architecture::kKimiK3, Architecture::kKimiLinear),
                         [](const auto& model) { return ArchitectureName(model.param); });

}  // namespace
}  // namespace thimble
