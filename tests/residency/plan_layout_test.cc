#include <gtest/gtest.h>

#include "base/byte_size.h"
#include "format/published_models.h"
#include "residency/checkpoint.h"
#include "residency/expert_cache.h"
#include "residency/memory_plan.h"
#include "residency/weight_layout.h"

namespace thimble {
namespace {

class PlanLayoutTest : public testing::TestWithParam<Architecture> {
 protected:
  const Checkpoint& checkpoint_ = SmallCheckpoint(GetParam());
  const WeightLayout real_ = LayOutWeights(checkpoint_.config(), checkpoint_.store());
  const WeightLayout ideal_ = LayOutWeights(checkpoint_.config());
};

void ExpectWithin(uint64_t ideal, uint64_t real, uint64_t tolerance) {
  EXPECT_LE(ideal, real + tolerance);
  EXPECT_LE(real, ideal + tolerance);
}

TEST_P(PlanLayoutTest, TheIdealListsTheSameTensorsInTheSameOrder) {
  ASSERT_EQ(ideal_.trunk.size(), real_.trunk.size());
  for (size_t i = 0; i < real_.trunk.size(); ++i) {
    const TrunkEntry& ideal = ideal_.trunk[i];
    const TrunkEntry& real = real_.trunk[i];
    EXPECT_EQ(ideal.tensor, real.tensor);
    EXPECT_EQ(ideal.granule, real.granule);
    EXPECT_EQ(ideal.extent.rows, real.extent.rows);
    EXPECT_EQ(ideal.extent.dtype, real.extent.dtype);
    // Decay rates may be padded in a file; a configuration does not say by how much.
    if (real.tensor.role == TensorRole::kALog) continue;
    EXPECT_EQ(ideal.extent.cols, real.extent.cols);
  }
}

TEST_P(PlanLayoutTest, IdealTensorsDoNotOverlap) {
  for (size_t i = 1; i < ideal_.trunk.size(); ++i) {
    const TensorExtent& before = ideal_.trunk[i - 1].extent;
    const TensorExtent& extent = ideal_.trunk[i].extent;
    if (extent.file != before.file) continue;
    EXPECT_EQ(extent.offset, before.offset + before.Bytes());
  }
}

TEST_P(PlanLayoutTest, SizesAgreeWithinAlignment) {
  const ModelConfig& config = checkpoint_.config();
  const WeightSizes ideal = MeasureWeights(config, ideal_);
  const WeightSizes real = MeasureWeights(config, real_);
  EXPECT_EQ(ideal.num_experts, real.num_experts);
  EXPECT_EQ(ideal.expert_bytes, real.expert_bytes);
  EXPECT_EQ(ideal.min_block_bytes, real.min_block_bytes);
  EXPECT_EQ(ideal.block_bytes, real.block_bytes);
  EXPECT_EQ(ideal.head_bytes, real.head_bytes);
  const uint64_t padding = config.num_layers() * 64;
  ExpectWithin(ideal.layer_bytes, real.layer_bytes, padding);
  // A piece begins and ends within a page.
  const auto schedule = TrunkSchedule::Build(real_.trunk, real.block_bytes);
  ExpectWithin(ideal.trunk_bytes, real.trunk_bytes,
               2 * BlockReader::kAlignment * schedule.pieces.size() + padding);
  ExpectWithin(ideal.expert_slot_bytes, real.expert_slot_bytes, 2 * BlockReader::kAlignment);
}

TEST_P(PlanLayoutTest, PlansAgreeWithinAlignment) {
  const ModelConfig& config = checkpoint_.config();
  PlanRequest request;
  request.budget_bytes = 64 * kMB;
  request.process_bytes = 8 * kMB;
  request.context = 128;
  const MemoryPlan ideal = PlanMemory(config, MeasureWeights(config, ideal_), request);
  const MemoryPlan real = PlanMemory(config, MeasureWeights(config, real_), request);
  EXPECT_EQ(ideal.prefill_chunk, real.prefill_chunk);
  EXPECT_EQ(ideal.ring_slots, real.ring_slots);
  EXPECT_EQ(ideal.expert_window, real.expert_window);
  EXPECT_EQ(ideal.cached_experts, real.cached_experts);
  EXPECT_EQ(ideal.items.at("session state"), real.items.at("session state"));
  EXPECT_EQ(ideal.items.at("workspace"), real.items.at("workspace"));
}

TEST_P(PlanLayoutTest, ASingleFileIsMeasuredLikeItsShards) {
  TempDir dir;
  const bool is_k3 = GetParam() == Architecture::kKimiK3;
  (is_k3 ? CheckpointBuilder::KimiK3() : CheckpointBuilder::KimiLinear())
      .WriteSingleFile(dir.path());
  const ModelConfig config = ReadModelConfig(dir.path());
  const auto store = TensorStore::Open(dir.path(), config);
  const WeightSizes single = MeasureWeights(config, LayOutWeights(config, store));
  const WeightSizes shards = MeasureWeights(config, real_);
  EXPECT_EQ(single.layer_bytes, shards.layer_bytes);
  EXPECT_EQ(single.head_bytes, shards.head_bytes);
  EXPECT_EQ(single.min_block_bytes, shards.min_block_bytes);
}

INSTANTIATE_TEST_SUITE_P(All, PlanLayoutTest,
                         testing::Values(Architecture::kKimiK3, Architecture::kKimiLinear),
                         [](const auto& suite) { return ArchitectureName(suite.param); });

TEST(PublishedLayoutTest, KimiK3HasTheKnownSizes) {
  const ModelConfig config = ParseModelConfig(PublishedConfig("kimi-k3"), "kimi-k3");
  const WeightSizes sizes = MeasureWeights(config, LayOutWeights(config));
  EXPECT_EQ(sizes.expert_bytes, 17'547'264U);
  EXPECT_EQ(sizes.num_experts, 92U * 896);
  EXPECT_NEAR(static_cast<double>(sizes.layer_bytes), 108.8e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(sizes.head_bytes), 2.349e9, 0.001e9);
  // A whole number of pages, and one more where it starts inside a page.
  EXPECT_EQ(sizes.expert_slot_bytes,
            17'547'264U + BlockReader::kAlignment + ExpertCache::SlotTableBytes());
  EXPECT_GE(sizes.trunk_bytes, sizes.layer_bytes + sizes.head_bytes);
  EXPECT_LT(static_cast<double>(sizes.trunk_bytes),
            1.001 * static_cast<double>(sizes.layer_bytes + sizes.head_bytes));
  EXPECT_EQ(sizes.block_bytes, 32 * kMiB);
}

}  // namespace
}  // namespace thimble
