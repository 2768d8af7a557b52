#include "format/published_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "format/model_config.h"
#include "format/model_summary.h"
#include "support/expect_error.h"
#include "support/shared_data.h"

namespace thimble {
namespace {

ModelConfig ConfigOf(std::string_view name) {
  return ParseModelConfig(PublishedConfig(name), std::string(name));
}

TEST(PublishedModelsTest, EveryNameHasAValidConfiguration) {
  EXPECT_THAT(PublishedModelNames(),
              testing::ElementsAre("kimi-k3", "kimi-linear-48b", "k3-small"));
  EXPECT_EQ(ConfigOf("kimi-k3").num_layers(), 93U);
  EXPECT_EQ(ConfigOf("kimi-linear-48b").num_layers(), 27U);
  EXPECT_EQ(ConfigOf("k3-small").num_layers(), 13U);
  for (const char* name : {"kimi-k4", ""}) {
    ExpectError(ErrorCode::kUsage, {"kimi-k3", "kimi-linear-48b"}, [&] { PublishedConfig(name); });
  }
}

TEST(PublishedModelsTest, KimiK3IsThePublishedOne) {
  const ModelSummary summary = Summarize(ConfigOf("kimi-k3"));
  EXPECT_EQ(summary.kda_layers, 69U);
  EXPECT_EQ(summary.mla_layers, 24U);
  EXPECT_EQ(summary.moe_layers, 92U);
  EXPECT_NEAR(static_cast<double>(summary.total_parameters), 2.78e12, 0.005e12);
  EXPECT_NEAR(static_cast<double>(summary.active_parameters), 104e9, 1e9);
}

TEST(PublishedModelsTest, KimiK3AgreesWithItsOwnConfigurationFile) {
  THIMBLE_NEED_SHARED("data/kimi-k3/config.json");
  const ModelConfig file = ReadModelConfig(SharedDir() / "data/kimi-k3");
  const ModelConfig ours = ConfigOf("kimi-k3");
  EXPECT_EQ(ours.layers, file.layers);
  EXPECT_EQ(ours.max_context, file.max_context);
  EXPECT_EQ(ours.attn_res_block, file.attn_res_block);
  EXPECT_EQ(ours.kda.gate_lower_bound, file.kda.gate_lower_bound);
  EXPECT_EQ(ours.activation.situ_beta, file.activation.situ_beta);
  EXPECT_EQ(ours.eos_ids, file.eos_ids);
  EXPECT_EQ(ours.bos_id, file.bos_id);
  EXPECT_EQ(Summarize(ours).total_bytes, Summarize(file).total_bytes);
  EXPECT_EQ(Summarize(ours).active_parameters, Summarize(file).active_parameters);
}

TEST(PublishedModelsTest, TheLastLayerIsMlaRightAfterAnother) {
  const ModelConfig k3 = ConfigOf("kimi-k3");
  EXPECT_EQ(k3.layers[91].mixer, MixerKind::kMla);
  EXPECT_EQ(k3.layers[92].mixer, MixerKind::kMla);
  EXPECT_EQ(ConfigOf("k3-small").num_layers(), 13U);
}

TEST(PublishedModelsTest, ExpertsMayBeFourBit) {
  ShapeOverrides overrides;
  overrides.mxfp4_experts = true;
  const std::string config = PublishedConfig("kimi-linear-48b", overrides);
  EXPECT_EQ(ParseModelConfig(config, "48b").moe.format, WeightFormat::kMXFP4);
  EXPECT_EQ(ConfigOf("kimi-linear-48b").moe.format, WeightFormat::kBF16);
}

TEST(PublishedModelsTest, AConfigurationIsChangedToMxfp4AndInNothingElse) {
  const std::string before = PublishedConfig("kimi-linear-48b");
  const std::string after = WithMxfp4Experts(before);
  ShapeOverrides overrides;
  overrides.mxfp4_experts = true;
  EXPECT_EQ(nlohmann::json::parse(after),
            nlohmann::json::parse(PublishedConfig("kimi-linear-48b", overrides)));
  EXPECT_EQ(ParseModelConfig(after, "48b").moe.format, WeightFormat::kMXFP4);
  ExpectBadModel({"config.json", "object"}, [] { WithMxfp4Experts("[1]"); });
}

TEST(PublishedModelsTest, KimiLinearHasFortyEightBillionParameters) {
  const ModelSummary summary = Summarize(ConfigOf("kimi-linear-48b"));
  EXPECT_EQ(summary.kda_layers, 20U);
  EXPECT_EQ(summary.mla_layers, 7U);
  EXPECT_EQ(summary.dense_layers, 1U);
  EXPECT_NEAR(static_cast<double>(summary.total_parameters), 49e9, 1e9);
  EXPECT_NEAR(static_cast<double>(summary.active_parameters), 3e9, 0.6e9);
  EXPECT_NEAR(static_cast<double>(summary.total_bytes), 98e9, 1e9);
}

}  // namespace
}  // namespace thimble
