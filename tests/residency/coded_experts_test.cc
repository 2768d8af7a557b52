#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "base/byte_size.h"
#include "pack/pack.h"
#include "residency/checkpoint.h"
#include "residency/expert_cache.h"
#include "residency/forecast.h"
#include "residency/memory_plan.h"
#include "support/fault_reader.h"

namespace thimble {
namespace {

// The experts of a small checkpoint, packed with coded scales.
class CodedExpertsTest : public testing::Test {
 protected:
  CodedExpertsTest() {
    PackModel(checkpoint_.paths()[0].parent_path(), {dir_ / "packed"}, {}, nullptr);
    config_ = ReadModelConfig(dir_ / "packed");
    store_ = std::make_unique<TensorStore>(TensorStore::Open(dir_ / "packed", config_));
    for (const ShardFile& file : store_->files()) paths_.push_back(file.path);
    all_.resize(config_.moe.num_experts);
    std::iota(all_.begin(), all_.end(), 0U);
  }

  std::unique_ptr<ExpertCache> NewCache(const ExpertMemory& memory, BlockReader& reader) {
    return std::make_unique<ExpertCache>(config_, *store_, memory, reader, monitor_, budget_);
  }

  std::string_view Given(const ExpertPiece& piece) const {
    return checkpoint_.Bytes(piece.file, piece.offset, piece.bytes);
  }

  // Takes all experts of a layer, each as the checkpoint has it.
  void TakeAll(ExpertCache& cache, size_t layer) {
    cache.Request(layer, all_);
    for (size_t i = 0; i < all_.size(); ++i) {
      const Lease<ExpertView> view = cache.Next();
      const ExpertExtent given = checkpoint_.store().Expert(layer, view->expert);
      size_t tensor = 0;
      for (const WeightMatrix* matrix : {&view->gate, &view->down, &view->up}) {
        EXPECT_TRUE(DataOf(*matrix) == Given(given[tensor++]));
        EXPECT_TRUE(ScalesOf(*matrix) == Given(given[tensor++]));
      }
    }
  }

  const Checkpoint& checkpoint_ = SmallCheckpoint(Architecture::kKimiK3);
  const std::vector<size_t> layers_ = checkpoint_.MoeLayers();
  TempDir dir_;
  ModelConfig config_;
  std::unique_ptr<TensorStore> store_;
  std::vector<std::filesystem::path> paths_;
  std::vector<uint32_t> all_;
  ReadMonitor monitor_;
  MemoryBudget budget_{kGiB};
};

// With reads that come at once, and shuffled.
class CodedExpertsLendTest : public CodedExpertsTest, public testing::WithParamInterface<bool> {};

// What stays is lent again as it is: decoded a second time it would be something else.
TEST_P(CodedExpertsLendTest, AreLentDecodedHoweverOften) {
  InstantReader instant(paths_);
  DirtyReader dirty(instant);
  ShuffledReader shuffled(dirty, 5);
  BlockReader& reader = GetParam() ? static_cast<BlockReader&>(shuffled) : dirty;
  for (const size_t window : {1, 3, 20}) {
    for (const size_t cached : {size_t{0}, size_t{9}, layers_.size() * all_.size()}) {
      const auto cache = NewCache({window, cached}, reader);
      for (int round = 0; round < 3; ++round) {
        for (const size_t layer : layers_) TakeAll(*cache, layer);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reads, CodedExpertsLendTest, testing::Bool(), [](const auto& suite) {
  return std::string(suite.param ? "Shuffled" : "Instant");
});

TEST_F(CodedExpertsTest, PreloadDecodesToo) {
  InstantReader reader(paths_);
  const auto cache = NewCache({2, layers_.size() * all_.size()}, reader);
  uint64_t told = 0;
  cache->Preload([&](uint64_t bytes) { told += bytes; });
  EXPECT_EQ(told, cache->CachedExpertBytes());
  EXPECT_EQ(told, cache->read_bytes());
  for (const size_t layer : layers_) TakeAll(*cache, layer);
  EXPECT_EQ(cache->num_hits(), layers_.size() * all_.size());
}

TEST_F(CodedExpertsTest, ChargesWhatThePlanSaysAndReadsWhatItForetells) {
  const WeightSizes sizes = MeasureWeights(config_, *store_);
  EXPECT_EQ(sizes.expert_bytes, checkpoint_.store().expert_bytes());
  EXPECT_LT(sizes.StoredExpertShare(), 0.98);
  EXPECT_GT(sizes.expert_scratch_bytes, 0U);
  PlanRequest request;
  request.budget_bytes = 64 * kMB;
  request.context = 16;
  const MemoryPlan plan = PlanMemory(config_, sizes, request);
  InstantReader reader(paths_);
  {
    const auto cache = NewCache({plan.expert_window, plan.cached_experts}, reader);
    EXPECT_EQ(budget_.Ledger().at("expert slots"), plan.items.at("expert slots"));
  }
  const auto cache = NewCache({1, 0}, reader);
  for (const size_t layer : layers_) TakeAll(*cache, layer);
  const size_t experts = layers_.size() * all_.size();
  EXPECT_NEAR(static_cast<double>(cache->read_bytes()),
              static_cast<double>(experts * sizes.stored_expert_bytes),
              static_cast<double>(experts));
  MemoryPlan bare;
  bare.ring_slots = 2;
  const SweepReads reads = ExpectedReads(config_, sizes, bare, {});
  EXPECT_EQ(reads.experts,
            static_cast<double>(layers_.size() * config_.moe.top_k * sizes.stored_expert_bytes));
}

}  // namespace
}  // namespace thimble
