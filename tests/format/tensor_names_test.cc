#include "format/tensor_names.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "support/checkpoint_builder.h"

namespace thimble {
namespace {

using Kind = TensorNames::Kind;

ModelConfig SmallK3() {
  return ParseModelConfig(CheckpointBuilder::KimiK3().config().dump(), "config.json");
}
ModelConfig SmallLinear() {
  return ParseModelConfig(CheckpointBuilder::KimiLinear().config().dump(), "config.json");
}

TEST(TensorNamesTest, EverySlotHasOneNameAndEveryNameItsSlot) {
  for (const ModelConfig& config : {SmallK3(), SmallLinear()}) {
    const TensorNames names(config);
    std::set<std::string> seen;
    for (size_t slot = 0; slot < names.size(); ++slot) {
      const std::string name = names.NameOf(slot);
      EXPECT_TRUE(seen.insert(name).second) << name;
      EXPECT_EQ(names.Find(name).slot, slot) << name;
      EXPECT_NE(names.Find(name).kind, Kind::kUnknown) << name;
    }
  }
}

TEST(TensorNamesTest, FindsThePartsOfAName) {
  const TensorNames names(SmallK3());
  const auto head = names.Find("language_model.lm_head.weight");
  EXPECT_EQ(head.kind, Kind::kGlobal);
  EXPECT_EQ(head.spec->role, TensorRole::kHead);
  const auto query = names.Find("language_model.model.layers.3.self_attn.q_proj.weight");
  EXPECT_EQ(query.kind, Kind::kLayer);
  EXPECT_EQ(query.layer, 3U);
  EXPECT_EQ(query.spec->role, TensorRole::kQuery);
  const auto expert =
      names.Find("language_model.model.layers.4.block_sparse_moe.experts.7.w2.weight_scale");
  EXPECT_EQ(expert.kind, Kind::kExpert);
  EXPECT_EQ(expert.layer, 4U);
  EXPECT_EQ(expert.expert, 7U);
  EXPECT_EQ(expert.piece->tensor, ExpertTensor::kDownScales);
}

TEST(TensorNamesTest, IgnoresTheVisionTowerOfKimiK3Only) {
  EXPECT_EQ(TensorNames(SmallK3()).Find("vision_tower.patch_embed.proj.weight").kind,
            Kind::kIgnored);
  EXPECT_EQ(TensorNames(SmallK3()).Find("mm_projector.proj.0.weight").kind, Kind::kIgnored);
  EXPECT_EQ(TensorNames(SmallK3()).Find("language_model.vision_tower.x").kind, Kind::kUnknown);
  EXPECT_EQ(TensorNames(SmallLinear()).Find("vision_tower.patch_embed.proj.weight").kind,
            Kind::kUnknown);
}

TEST(TensorNamesTest, KnowsNoOtherName) {
  const TensorNames names(SmallK3());
  const std::string layer = "language_model.model.layers.";
  for (const std::string& name : {
           std::string(),
           std::string("language_model."),
           std::string("lm_head.weight"),
           std::string("language_model.lm_head.weight "),
           std::string("language_model.lm_head"),
           layer,
           layer + "1",
           layer + "1.",
           layer + "5.input_layernorm.weight",
           layer + "01.input_layernorm.weight",
           layer + "+1.input_layernorm.weight",
           layer + "-1.input_layernorm.weight",
           layer + " 1.input_layernorm.weight",
           layer + "1x.input_layernorm.weight",
           layer + "99999999999999999999.input_layernorm.weight",
           layer + "2.self_attn.k_proj.weight",
           layer + "1.self_attn.kv_b_proj.weight",
           layer + "1.mlp.up_proj.weight",
           layer + "0.block_sparse_moe.experts.0.w1.weight_packed",
           layer + "1.block_sparse_moe.experts.8.w1.weight_packed",
           layer + "1.block_sparse_moe.experts.00.w1.weight_packed",
           layer + "1.block_sparse_moe.experts.0.w4.weight_packed",
           layer + "1.block_sparse_moe.experts.0.w1.weight",
           layer + "1.block_sparse_moe.experts.0",
           layer + "1.block_sparse_moe.experts.",
       }) {
    EXPECT_EQ(names.Find(name).kind, Kind::kUnknown) << name;
  }
}

TEST(TensorRoleTest, ListsSmallTensorsBeforeMatricesAndEachRoleOnce) {
  for (const ModelConfig& config : {SmallK3(), SmallLinear()}) {
    for (const LayerSpec& layer : config.layers) {
      std::set<TensorRole> roles;
      bool in_matrices = false;
      for (const TensorSpec& spec : LayerTensors(config, layer)) {
        EXPECT_TRUE(roles.insert(spec.role).second) << spec.name;
        EXPECT_FALSE(in_matrices && !IsMatrix(spec.role)) << spec.name;
        in_matrices = IsMatrix(spec.role);
      }
    }
    EXPECT_EQ(GlobalTensors(config).front().role, TensorRole::kEmbedding);
    EXPECT_EQ(GlobalTensors(config).back().role, TensorRole::kHead);
  }
}

}  // namespace
}  // namespace thimble
