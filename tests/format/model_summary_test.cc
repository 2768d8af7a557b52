#include "format/model_summary.h"

#include <gtest/gtest.h>

#include <string>

#include "support/checkpoint_builder.h"
#include "support/shared_data.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

uint64_t Parameters(const ModelSummary& summary, ModelPart part) {
  return summary.Part(part).parameters;
}

TEST(ModelSummaryTest, CountsTheFullKimiK3) {
  THIMBLE_NEED_SHARED("data/kimi-k3/config.json");
  const ModelSummary summary = Summarize(ReadModelConfig(SharedDir() / "data/kimi-k3"));
  EXPECT_EQ(summary.kda_layers, 69U);
  EXPECT_EQ(summary.mla_layers, 24U);
  EXPECT_EQ(summary.dense_layers, 1U);
  EXPECT_EQ(summary.moe_layers, 92U);
  EXPECT_EQ(Parameters(summary, ModelPart::kEmbedding), 163840U * 7168);
  EXPECT_EQ(Parameters(summary, ModelPart::kExperts), 92ULL * 896 * 3 * 3072 * 3584);
  EXPECT_EQ(Parameters(summary, ModelPart::kDense), 3ULL * 33792 * 7168);
  EXPECT_NEAR(static_cast<double>(summary.total_parameters), 2.78e12, 0.005e12);
  EXPECT_NEAR(static_cast<double>(summary.active_parameters), 104e9, 1e9);
  // The index states 1,560,860,324,864; the rest is the vision tower and padding.
  EXPECT_NEAR(static_cast<double>(summary.total_bytes), 1.56e12, 0.001e12);
}

TEST(ModelSummaryTest, PartsAddUp) {
  for (CheckpointBuilder builder : {CheckpointBuilder::KimiK3(), CheckpointBuilder::KimiLinear()}) {
    TempDir dir;
    builder.Write(dir.path());
    const ModelConfig config = ReadModelConfig(dir.path());
    const ModelSummary found = Summarize(config, TensorStore::Open(dir.path(), config));
    PartSummary sum;
    for (const PartSummary& part : found.parts) {
      sum.parameters += part.parameters;
      sum.bytes += part.bytes;
    }
    EXPECT_EQ(sum.parameters, found.total_parameters);
    EXPECT_EQ(sum.bytes, found.total_bytes);
    uint64_t stored = 0;
    for (const auto& tensor : builder.tensors()) stored += tensor.bytes.size();
    EXPECT_EQ(found.total_bytes, stored);
  }
}

TEST(ModelSummaryTest, ThePublishedTypesAreThoseOfTheShardsButForPadding) {
  TempDir dir;
  CheckpointBuilder::KimiK3({.a_log_length = 2}).Write(dir.path());
  const ModelConfig config = ReadModelConfig(dir.path());
  const TensorStore store = TensorStore::Open(dir.path(), config);
  EXPECT_EQ(Summarize(config).total_bytes, Summarize(config, store).total_bytes);
}

TEST(ModelSummaryTest, EveryPartHasAName) {
  for (size_t part = 0; part < kNumModelParts; ++part) {
    EXPECT_NE(NameOf(static_cast<ModelPart>(part)), "?");
  }
}

}  // namespace
}  // namespace thimble
