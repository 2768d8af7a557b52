#include "format/model_config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/checkpoint_builder.h"
#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/shared_data.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using nlohmann::json;

constexpr const char* kSource = "some/config.json";

ModelConfig Parse(const json& config) { return ParseModelConfig(config.dump(), kSource); }

// One edit of a valid configuration and the field that the error must name.
struct BadField {
  const char* pointer;  // JSON pointer below the text model's object
  json value;           // discarded: erase the field
  const char* named;
};
json Erase() { return json(json::value_t::discarded); }

void ApplyEdit(const BadField& edit, json* text) {
  const json::json_pointer pointer(edit.pointer);
  if (edit.value.is_discarded()) {
    text->at(pointer.parent_pointer()).erase(pointer.back());
  } else {
    (*text)[pointer] = edit.value;
  }
}

void ExpectNamed(CheckpointBuilder builder, const BadField& edit) {
  SCOPED_TRACE(std::string(edit.pointer) + " " + edit.value.dump());
  ApplyEdit(edit, &builder.text_config());
  ExpectBadModel({kSource, edit.named, "expected", "found"}, [&] { Parse(builder.config()); });
}

TEST(ModelConfigTest, ReadsAKimiK3Config) {
  const ModelConfig config = Parse(CheckpointBuilder::KimiK3().config());
  EXPECT_EQ(config.architecture, Architecture::kKimiK3);
  EXPECT_EQ(config.hidden_size, 64U);
  EXPECT_EQ(config.max_context, 256U);
  EXPECT_EQ(config.attn_res_block, 2U);
  EXPECT_EQ(config.NumResidualBlocks(), 3U);
  EXPECT_EQ(config.kda.gate_lower_bound, -5.0F);
  EXPECT_TRUE(config.kda.full_rank_gate);
  EXPECT_TRUE(config.mla.output_gate);
  EXPECT_EQ(config.moe.format, WeightFormat::kMXFP4);
  EXPECT_EQ(config.ExpertWidth(), 32U);
  EXPECT_EQ(config.moe.shared_inner_size, 64U);
  EXPECT_EQ(config.activation.situ_beta, 4.0F);
  EXPECT_EQ(config.activation.situ_linear_beta, 25.0F);
  const std::vector<LayerSpec> layers = {{MixerKind::kKda, FeedForwardKind::kDense},
                                         {MixerKind::kKda, FeedForwardKind::kMoe},
                                         {MixerKind::kMla, FeedForwardKind::kMoe},
                                         {MixerKind::kKda, FeedForwardKind::kMoe},
                                         {MixerKind::kMla, FeedForwardKind::kMoe}};
  EXPECT_EQ(config.layers, layers);
}

TEST(ModelConfigTest, ReadsAKimiLinearConfig) {
  const ModelConfig config = Parse(CheckpointBuilder::KimiLinear().config());
  EXPECT_EQ(config.architecture, Architecture::kKimiLinear);
  EXPECT_EQ(config.attn_res_block, 0U);
  EXPECT_FALSE(config.kda.gate_lower_bound);
  EXPECT_FALSE(config.kda.full_rank_gate);
  EXPECT_EQ(config.mla.q_lora_rank, 0U);
  EXPECT_EQ(config.moe.latent_size, 0U);
  EXPECT_EQ(config.ExpertWidth(), 64U);
  EXPECT_EQ(config.moe.format, WeightFormat::kBF16);
  EXPECT_EQ(config.moe.scaling_factor, 2.446F);
  EXPECT_FALSE(config.activation.situ_beta);
}

TEST(ModelConfigTest, ReadsThePublishedK3Config) {
  THIMBLE_NEED_SHARED("data/kimi-k3/config.json");
  const ModelConfig config = ReadModelConfig(SharedDir() / "data/kimi-k3");
  EXPECT_EQ(config.num_layers(), 93U);
  EXPECT_EQ(config.layers[91].mixer, MixerKind::kMla);
  EXPECT_EQ(config.layers[92].mixer, MixerKind::kMla);
  EXPECT_EQ(config.layers[90].mixer, MixerKind::kKda);
  EXPECT_EQ(config.layers[0].feed_forward, FeedForwardKind::kDense);
  EXPECT_EQ(config.moe.num_experts, 896U);
  EXPECT_EQ(config.max_context, 1048576U);
  EXPECT_EQ(config.NumResidualBlocks(), 8U);
  EXPECT_EQ(config.bos_id, 163584U);
  EXPECT_EQ(config.eos_ids, std::vector<uint32_t>{163586});
}

TEST(ModelConfigTest, NamesTheBadFieldOfAKimiK3Config) {
  const json huge = uint64_t{1} << 31;
  const std::vector<BadField> edits = {
      {"/model_type", "llama", "text_config.model_type"},
      {"/hidden_size", Erase(), "text_config.hidden_size"},
      {"/hidden_size", 64.0, "text_config.hidden_size"},
      {"/hidden_size", -64, "text_config.hidden_size"},
      {"/hidden_size", 0, "text_config.hidden_size"},
      {"/hidden_size", "64", "text_config.hidden_size"},
      {"/hidden_size", huge, "text_config.hidden_size"},
      {"/hidden_size", nullptr, "text_config.hidden_size"},
      {"/vocab_size", true, "vocab_size"},
      {"/vocab_size", 10, "bos_token_id"},
      {"/max_position_embeddings", Erase(), "max_position_embeddings"},
      {"/rms_norm_eps", 0, "rms_norm_eps"},
      {"/rms_norm_eps", 1e300, "rms_norm_eps"},
      {"/rms_norm_eps", "1e-5", "rms_norm_eps"},
      {"/intermediate_size", 0, "intermediate_size"},
      {"/attn_res_block_size", 0, "attn_res_block_size"},
      {"/num_hidden_layers", 6, "full_attn_layers"},
      {"/num_hidden_layers", 4, "full_attn_layers"},
      {"/num_hidden_layers", 100000, "num_hidden_layers"},
      {"/first_k_dense_replace", -1, "first_k_dense_replace"},
      {"/moe_layer_freq", 0, "moe_layer_freq"},
      {"/linear_attn_config", Erase(), "linear_attn_config"},
      {"/linear_attn_config", 3, "linear_attn_config"},
      {"/linear_attn_config/kda_layers", {1, 2, 3, 4}, "linear_attn_config.full_attn_layers"},
      {"/linear_attn_config/kda_layers", {1, 2, 2, 4}, "linear_attn_config.kda_layers"},
      {"/linear_attn_config/kda_layers", {1, 2}, "linear_attn_config.full_attn_layers"},
      {"/linear_attn_config/kda_layers", {0, 1, 2, 4}, "linear_attn_config.kda_layers"},
      {"/linear_attn_config/kda_layers", {1, 2, 4, 6}, "linear_attn_config.kda_layers"},
      {"/linear_attn_config/kda_layers", "1,2,4", "linear_attn_config.kda_layers"},
      {"/linear_attn_config/num_heads", 0, "linear_attn_config.num_heads"},
      {"/linear_attn_config/head_dim", huge.get<uint64_t>() - 1, "linear_attn_config.head_dim"},
      {"/linear_attn_config/short_conv_kernel_size", 9, "short_conv_kernel_size"},
      {"/linear_attn_config/gate_lower_bound", 5.0, "gate_lower_bound"},
      {"/linear_attn_config/use_full_rank_gate", 1, "use_full_rank_gate"},
      {"/num_key_value_heads", 1, "num_key_value_heads"},
      {"/mla_use_nope", false, "mla_use_nope"},
      {"/mla_use_nope", Erase(), "mla_use_nope"},
      {"/kv_lora_rank", nullptr, "kv_lora_rank"},
      {"/kv_lora_rank", huge.get<uint64_t>() - 1, "kv_lora_rank"},
      {"/q_lora_rank", 0, "q_lora_rank"},
      {"/v_head_dim", 1.5, "v_head_dim"},
      {"/qk_rope_head_dim", huge.get<uint64_t>() - 1, "qk_rope_head_dim"},
      {"/num_experts", 100000, "num_experts"},
      {"/num_experts", 1, "num_experts_per_token"},
      {"/num_experts_per_token", 9, "num_experts_per_token"},
      {"/moe_intermediate_size", 48, "moe_intermediate_size"},
      {"/routed_expert_hidden_size", 48, "routed_expert_hidden_size"},
      {"/routed_expert_hidden_size", nullptr, "latent_moe_use_norm"},
      {"/num_shared_experts", huge.get<uint64_t>() - 1, "num_shared_experts"},
      {"/num_expert_group", 3, "num_expert_group"},
      {"/num_expert_group", 8, "num_expert_group"},
      {"/topk_group", 2, "topk_group"},
      {"/moe_router_activation_func", "tanh", "moe_router_activation_func"},
      {"/moe_renormalize", Erase(), "moe_renormalize"},
      {"/routed_scaling_factor", -1.0, "routed_scaling_factor"},
      {"/topk_method", "greedy", "topk_method"},
      {"/hidden_act", "gelu", "hidden_act"},
      {"/activation_situ_beta", -4.0, "activation_situ_beta"},
      {"/tie_word_embeddings", true, "tie_word_embeddings"},
      {"/num_nextn_predict_layers", 1, "num_nextn_predict_layers"},
      {"/quantization_config/format", "nvfp4-pack-quantized", "quantization_config.format"},
      {"/quantization_config/quant_method", "gptq", "quantization_config.quant_method"},
      {"/quantization_config/config_groups", json::object(), "config_groups"},
      {"/quantization_config/config_groups/group_0/weights/num_bits", 8,
       "group_0.weights.num_bits"},
      {"/quantization_config/config_groups/group_0/weights/group_size", 16, "group_size"},
      {"/quantization_config/config_groups/group_0/input_activations", json::object(),
       "input_activations"},
      {"/eos_token_id", {1, 96}, "eos_token_id"},
      {"/eos_token_id", "x", "eos_token_id"},
      {"/bos_token_id", 1, "bos_token_id"},
  };
  for (const BadField& edit : edits) ExpectNamed(CheckpointBuilder::KimiK3(), edit);
}

// Other methods have no format, and nothing to download again.
TEST(ModelConfigTest, NamesAQuantizationThatIsNotSupported) {
  for (const char* method : {"gptq", "awq", "fp8", "bitsandbytes", "mxfp4"}) {
    CheckpointBuilder builder = CheckpointBuilder::KimiK3();
    builder.text_config()["quantization_config"] = {{"quant_method", method}, {"bits", 4}};
    const std::string message = ExpectBadModel(
        {"quantization_config.quant_method", "\"compressed-tensors\"", "mxfp4-pack-quantized",
         "found \"" + std::string(method) + "\"", "not supported"},
        [&] { ParseModelConfig(builder.config().dump(), "config.json"); });
    EXPECT_THAT(message, testing::Not(testing::HasSubstr("download it again")));
  }
}

TEST(ModelConfigTest, ChecksThatTheChosenGroupsHoldTheChosenExperts) {
  CheckpointBuilder builder = CheckpointBuilder::KimiK3();
  builder.text_config()["num_expert_group"] = 4;
  EXPECT_EQ(Parse(builder.config()).moe.num_groups, 4U);
  builder.text_config()["num_experts_per_token"] = 3;
  ExpectBadModel({"topk_group", "num_experts_per_token (3)"}, [&] { Parse(builder.config()); });
  builder.text_config()["topk_group"] = 2;
  EXPECT_EQ(Parse(builder.config()).moe.top_groups, 2U);
}

TEST(ModelConfigTest, BoundsTheModelAsAWhole) {
  CheckpointBuilder builder = CheckpointBuilder::KimiK3();
  const uint64_t huge = (uint64_t{1} << 31) - 32;
  for (const char* key : {"hidden_size", "moe_intermediate_size", "routed_expert_hidden_size"}) {
    builder.text_config()[key] = huge;
  }
  builder.text_config()["num_shared_experts"] = 1;
  ExpectBadModel({kSource, "hidden_size", "2^62"}, [&] { Parse(builder.config()); });
}

TEST(ModelConfigTest, NamesUnknownArchitectures) {
  json config = CheckpointBuilder::KimiK3().config();
  config["model_type"] = "llama";
  ExpectBadModel({kSource, "'model_type'", "kimi_k3 or kimi_linear", "\"llama\""},
                 [&] { Parse(config); });
  config.erase("model_type");
  ExpectBadModel({"'model_type'", "found nothing"}, [&] { Parse(config); });
}

TEST(ModelConfigTest, RejectsAKimiK3ConfigWithoutATextModel) {
  json config = CheckpointBuilder::KimiK3().config();
  config.erase("text_config");
  ExpectBadModel({"'text_config'", "found nothing"}, [&] { Parse(config); });
}

TEST(ModelConfigTest, ReadsQuantizationFromTheTopLevelToo) {
  json config = CheckpointBuilder::KimiK3().config();
  config["quantization_config"] = config["text_config"]["quantization_config"];
  config["text_config"].erase("quantization_config");
  EXPECT_EQ(Parse(config).moe.format, WeightFormat::kMXFP4);
}

TEST(ModelConfigTest, ReadsAnActivationWithoutBetasAsTheReferenceDoes) {
  CheckpointBuilder builder = CheckpointBuilder::KimiK3();
  builder.text_config()["activation_situ_beta"] = nullptr;
  builder.text_config()["activation_situ_linear_beta"] = nullptr;
  const ActivationConfig activation = Parse(builder.config()).activation;
  EXPECT_EQ(activation.situ_beta, 1.0F);
  EXPECT_EQ(activation.situ_linear_beta, 0.0F);
}

TEST(ModelConfigTest, RejectsTextThatIsNoConfiguration) {
  const auto parse = [](const std::string& text) {
    return [text] { ParseModelConfig(text, kSource); };
  };
  ExpectBadModel({kSource, "expected JSON"}, parse(""));
  ExpectBadModel({kSource, "expected JSON"}, parse("hello"));
  ExpectBadModel({kSource, "expected JSON"}, parse("{\"a\":1,}"));
  ExpectBadModel({kSource, "expected JSON"}, parse("{\"a\":1} {}"));
  ExpectBadModel({kSource, "expected JSON"}, parse("{\"a\":1e999}"));
  ExpectBadModel({kSource, "NUL"}, parse(std::string("{}\0x", 4)));
  ExpectBadModel({kSource, "expected a JSON object"}, parse("[1]"));
  ExpectBadModel({kSource, "deep"}, parse("{\"a\":" + std::string(100'000, '[')));
}

TEST(ModelConfigTest, RejectsRepeatedFieldsAtAnyDepth) {
  const auto parse = [](const std::string& text) {
    return [text] { ParseModelConfig(text, kSource); };
  };
  ExpectBadModel({kSource, "'model_type'", "twice"},
                 parse(R"({"model_type":"kimi_k3","model_type":"kimi_k3"})"));
  ExpectBadModel({kSource, "'b'", "twice"}, parse(R"({"a":[{"b":1,"c":{"b":1},"b":2}]})"));
}

TEST(ModelConfigTest, CollectsEndIdsFromAllThreePlaces) {
  TempDir dir;
  CheckpointBuilder builder = CheckpointBuilder::KimiK3();
  builder.config()["eos_token_id"] = {7, 8};
  builder.text_config()["eos_token_id"] = 8;
  WriteText(dir / "config.json", builder.config().dump());
  EXPECT_EQ(ReadModelConfig(dir.path()).eos_ids, (std::vector<uint32_t>{7, 8}));
  WriteText(dir / "generation_config.json", R"({"eos_token_id":[9,7]})");
  EXPECT_EQ(ReadModelConfig(dir.path()).eos_ids, (std::vector<uint32_t>{7, 8, 9}));
  WriteText(dir / "generation_config.json", R"({"eos_token_id":96})");
  ExpectBadModel({"generation_config.json", "'eos_token_id'", "vocab_size (96)"},
                 [&] { ReadModelConfig(dir.path()); });
}

TEST(ModelConfigTest, NamesMissingFilesAndDirectories) {
  TempDir dir;
  ExpectBadModel({(dir / "config.json").string(), "No such file"},
                 [&] { ReadModelConfig(dir.path()); });
  ExpectBadModel({(dir / "nowhere").string(), "No such file"},
                 [&] { ReadModelConfig(dir / "nowhere"); });
  WriteText(dir / "file", "x");
  ExpectBadModel({(dir / "file").string(), "expected a directory"},
                 [&] { ReadModelConfig(dir / "file"); });
  std::filesystem::create_directory(dir / "config.json");
  ExpectBadModel({(dir / "config.json").string(), "directory"},
                 [&] { ReadModelConfig(dir.path()); });
}

TEST(ModelConfigTest, RejectsAConfigThatIsFarTooLong) {
  TempDir dir;
  WriteText(dir / "config.json", std::string(17 << 20, ' '));
  ExpectBadModel({"config.json", "at most"}, [&] { ReadModelConfig(dir.path()); });
}

}  // namespace
}  // namespace thimble
