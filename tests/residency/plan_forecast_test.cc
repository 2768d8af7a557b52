#include <gtest/gtest.h>

#include "base/byte_size.h"
#include "base/error.h"
#include "format/published_models.h"
#include "residency/forecast.h"
#include "residency/memory_plan.h"
#include "residency/weight_layout.h"

namespace thimble {
namespace {

constexpr double kGigabyte = 1e9;

// The full Kimi K3, of which nothing is on this machine.
class PlanForecastTest : public testing::Test {
 protected:
  MemoryPlan PlanFor(double gigabytes) const {
    PlanRequest request;
    request.budget_bytes = static_cast<uint64_t>(gigabytes * kGigabyte);
    request.process_bytes = 50 * kMB;
    request.context = 4096;
    request.num_threads = 2;
    return PlanMemory(config_, sizes_, request);
  }
  SweepReads Reads(const MemoryPlan& plan, const SweepKind& sweep = {}) const {
    return ExpectedReads(config_, sizes_, plan, sweep);
  }
  static MemoryPlan Bare() {
    MemoryPlan plan;
    plan.ring_slots = 2;
    return plan;
  }

  const ModelConfig config_ = ParseModelConfig(PublishedConfig("kimi-k3"), "kimi-k3");
  const WeightSizes sizes_ = MeasureWeights(config_, LayOutWeights(config_));
  const MachineRates rates_ = [] {
    MachineRates rates = {.drive_bytes_per_s = 7e9};
    rates.Of(WeightFormat::kBF16) = {.bytes_per_s = 20e9, .flops = 100e9};
    rates.Of(WeightFormat::kF32) = {.bytes_per_s = 30e9, .flops = 90e9};
    rates.Of(WeightFormat::kMXFP4) = {.bytes_per_s = 5e9, .flops = 80e9};
    return rates;
  }();
};

TEST_F(PlanForecastTest, ATokenReadsAllWhereNothingIsResident) {
  const SweepReads reads = Reads(Bare());
  EXPECT_NEAR(reads.experts, 25.83e9, 0.005e9);
  EXPECT_NEAR(reads.layers + reads.experts, 134.6e9, 0.05e9);
  EXPECT_NEAR(reads.layers / (reads.layers + reads.experts), 0.81, 0.005);
  EXPECT_NEAR(reads.head, 2.35e9, 0.005e9);
  EXPECT_EQ(reads.embedding, 14336);
}

TEST_F(PlanForecastTest, EachGigabyteOfPinnedTrunkSavesAGigabyteOfReads) {
  const double cold = Reads(Bare()).Total();
  for (const double gigabytes : {1.0, 3.0, 10.0, 64.0}) {
    MemoryPlan plan = Bare();
    plan.pinned_bytes = static_cast<uint64_t>(gigabytes * kGigabyte);
    EXPECT_NEAR(cold - Reads(plan).Total(), gigabytes * kGigabyte, 0.002 * gigabytes * kGigabyte);
  }
}

TEST_F(PlanForecastTest, AnyPlanReadsWhatItDoesNotPin) {
  const double cold = Reads(Bare()).Total();
  for (const double gigabytes : {1.5, 3.0, 8.24, 16.0, 32.0, 64.0}) {
    const MemoryPlan plan = PlanFor(gigabytes);
    EXPECT_LE(plan.TotalBytes(), static_cast<uint64_t>(gigabytes * kGigabyte));
    EXPECT_NEAR(cold - Reads(plan).Total(), static_cast<double>(plan.pinned_bytes),
                0.002 * static_cast<double>(plan.pinned_bytes) + 1)
        << gigabytes;
  }
}

TEST_F(PlanForecastTest, OnceTheTrunkIsPinnedMemoryGoesToExperts) {
  const MemoryPlan plan = PlanFor(160);
  EXPECT_EQ(plan.ring_slots, 0U);
  EXPECT_GT(plan.cached_experts, 0U);
  const SweepReads reads = Reads(plan);
  EXPECT_EQ(reads.layers, 0);
  EXPECT_EQ(reads.head, 0);
  EXPECT_LT(reads.experts, Reads(Bare()).experts);
}

TEST_F(PlanForecastTest, LocalRoutingReadsLessOnceATokensExpertsFit) {
  const SweepKind local = {.num_tokens = 1, .with_head = true, .routing = Routing::kLocal};
  MemoryPlan plan = Bare();
  EXPECT_EQ(Reads(plan, local).experts, Reads(plan).experts);
  plan.cached_experts = 92 * config_.moe.top_k;
  EXPECT_NEAR(ExpectedHitRate(config_, plan, Routing::kLocal), kRepeatedExperts, 1e-9);
  EXPECT_NEAR(ExpectedHitRate(config_, plan, Routing::kUniform), 16.0 / 896, 1e-9);
  plan.cached_experts = 92 * config_.moe.num_experts;
  EXPECT_NEAR(ExpectedHitRate(config_, plan, Routing::kLocal), 1, 1e-9);
  EXPECT_NEAR(ExpectedHitRate(config_, plan, Routing::kUniform), 1, 1e-9);
}

TEST_F(PlanForecastTest, DistinctExpertsFollowTheUniformFormula) {
  EXPECT_NEAR(DistinctExperts(config_.moe, 1), 16, 1e-9);
  EXPECT_NEAR(DistinctExperts(config_.moe, 5), 77, 0.5);
  EXPECT_NEAR(DistinctExperts(config_.moe, 17), 236, 0.5);
  EXPECT_NEAR(DistinctExperts(config_.moe, 40), 460, 0.5);
  EXPECT_NEAR(DistinctExperts(config_.moe, 100'000), 896, 1e-6);
}

TEST_F(PlanForecastTest, AWideChunkReadsTheTrunkOnce) {
  const SweepKind wide = {.num_tokens = 2048, .with_head = false, .routing = Routing::kUniform};
  const SweepReads reads = Reads(Bare(), wide);
  EXPECT_EQ(reads.layers, Reads(Bare()).layers);
  EXPECT_EQ(reads.head, 0);
  EXPECT_NEAR(reads.Total() / 2048, 0.76e9, 0.005e9);
}

TEST_F(PlanForecastTest, TheSlowerOfDriveAndCoresSetsThePace) {
  const double cores = ComputeSeconds(config_, sizes_, rates_, {});
  EXPECT_NEAR(cores, (108.8 + 2.35) / 20 + 25.83 / 5, 0.01);
  MachineRates rates = rates_;
  EXPECT_NEAR(SweepSeconds(config_, sizes_, Bare(), rates, {}), 137.0 / 7, 0.02);
  rates.drive_bytes_per_s = 1e12;
  EXPECT_EQ(SweepSeconds(config_, sizes_, Bare(), rates, {}), cores);
}

TEST_F(PlanForecastTest, WideSweepsAreBoundByArithmetic) {
  constexpr double kTokens = 2048;
  const SweepKind wide = {.num_tokens = 2048, .with_head = false, .routing = Routing::kUniform};
  const double trunk = 108.8e9 * kTokens / rates_.Of(WeightFormat::kBF16).flops;
  const double experts =
      2.0 * 92 * 16 * 3 * 3584 * 3072 * kTokens / rates_.Of(WeightFormat::kMXFP4).flops;
  const double expected = trunk + experts;
  EXPECT_NEAR(ComputeSeconds(config_, sizes_, rates_, wide), expected, 0.001 * expected);
}

TEST_F(PlanForecastTest, PackedTrunksPassFewerBytesAndAsManyWeights) {
  WeightSizes sizes;
  sizes.layer_parts[static_cast<size_t>(WeightFormat::kCodedBF16)] = {.bytes = 142'000'000,
                                                                      .weights = 100'000'000};
  MachineRates rates;
  rates.Of(WeightFormat::kCodedBF16) = {.bytes_per_s = 10e9, .flops = 50e9};
  ModelConfig dense = config_;
  for (LayerSpec& layer : dense.layers) layer.feed_forward = FeedForwardKind::kDense;
  EXPECT_EQ(FormatsOf(dense, sizes), std::vector<WeightFormat>{WeightFormat::kCodedBF16});
  EXPECT_NEAR(ComputeSeconds(dense, sizes, rates, {.num_tokens = 1}), 142e6 / 10e9, 1e-9);
  EXPECT_NEAR(ComputeSeconds(dense, sizes, rates, {.num_tokens = 100}), 2e10 / 50e9, 1e-9);
}

TEST_F(PlanForecastTest, ContextCostsItsLatents) {
  EXPECT_EQ(ContextTokenBytes(config_), 24U * 576 * 4);
  EXPECT_EQ(ContextTokenBytes(config_, LatentFormat::kBF16), 24U * 576 * 2);
  EXPECT_EQ(ContextTokenBytes(config_, LatentFormat::kFP8), 24U * (576 + 2));
}

TEST_F(PlanForecastTest, TooLittleMemoryIsRefusedWithTheLedger) {
  try {
    PlanFor(0.4);
    FAIL() << "expected a refusal";
  } catch (const OverBudgetError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOverBudget);
    EXPECT_NE(std::string(error.what()).find("session state"), std::string::npos);
    EXPECT_GT(error.smallest_budget(), uint64_t{400} * kMB);
  }
}

TEST(PlanKimiLinearTest, AllOfItFitsALargeMachine) {
  const ModelConfig config =
      ParseModelConfig(PublishedConfig("kimi-linear-48b"), "kimi-linear-48b");
  const WeightSizes sizes = MeasureWeights(config, LayOutWeights(config));
  PlanRequest request;
  request.budget_bytes = 128 * kGB;
  request.context = 4096;
  const MemoryPlan plan = PlanMemory(config, sizes, request);
  EXPECT_EQ(plan.cached_experts, 26U * 256);
  const SweepReads reads = ExpectedReads(config, sizes, plan, {});
  EXPECT_NEAR(reads.Total(), 2304 * 2, 1);
}

}  // namespace
}  // namespace thimble
