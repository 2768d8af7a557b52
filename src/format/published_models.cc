#include "format/published_models.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace thimble {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Shape {
  const char* name;
  bool is_k3;
  size_t hidden;
  size_t vocab;
  size_t layers;
  size_t max_context;
  size_t kda_heads;
  size_t kda_head_dim;
  size_t mla_heads;
  size_t q_lora;  // K3 only
  size_t kv_lora;
  size_t nope;
  size_t extra;
  size_t value;
  size_t dense_inner;
  size_t experts;
  size_t top_k;
  size_t expert_inner;
  size_t latent;  // K3 only
  size_t shared_experts;
  size_t res_block;  // K3 only
};

constexpr Shape kShapes[] = {
    {.name = "kimi-k3",
     .is_k3 = true,
     .hidden = 7168,
     .vocab = 163840,
     .layers = 93,
     .max_context = 1048576,
     .kda_heads = 96,
     .kda_head_dim = 128,
     .mla_heads = 96,
     .q_lora = 1536,
     .kv_lora = 512,
     .nope = 128,
     .extra = 64,
     .value = 128,
     .dense_inner = 33792,
     .experts = 896,
     .top_k = 16,
     .expert_inner = 3072,
     .latent = 3584,
     .shared_experts = 2,
     .res_block = 12},
    {.name = "kimi-linear-48b",
     .is_k3 = false,
     .hidden = 2304,
     .vocab = 163840,
     .layers = 27,
     .max_context = 1048576,
     .kda_heads = 32,
     .kda_head_dim = 128,
     .mla_heads = 32,
     .q_lora = 0,
     .kv_lora = 512,
     .nope = 128,
     .extra = 64,
     .value = 128,
     .dense_inner = 9216,
     .experts = 256,
     .top_k = 8,
     .expert_inner = 1024,
     .latent = 0,
     .shared_experts = 1,
     .res_block = 0},
    {.name = "k3-small",
     .is_k3 = true,
     .hidden = 512,
     .vocab = 4096,
     .layers = 13,
     .max_context = 65536,
     .kda_heads = 8,
     .kda_head_dim = 64,
     .mla_heads = 8,
     .q_lora = 192,
     .kv_lora = 128,
     .nope = 64,
     .extra = 32,
     .value = 64,
     .dense_inner = 1536,
     .experts = 32,
     .top_k = 4,
     .expert_inner = 128,
     .latent = 256,
     .shared_experts = 2,
     .res_block = 4},
};

const Shape& FindShape(std::string_view name) {
  std::string known;
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + std::string(shape.name);
  }
  throw Error(ErrorCode::kUsage,
              "unknown model shape '" + std::string(name) + "', expected one of: " + known);
}

// Every fourth layer is MLA, and the last; lists count from 1.
OrderedJson LinearAttention(const Shape& shape) {
  OrderedJson kda = OrderedJson::array();
  OrderedJson full = OrderedJson::array();
  for (size_t number = 1; number <= shape.layers; ++number) {
    (number % 4 == 0 || number == shape.layers ? full : kda).push_back(number);
  }
  OrderedJson json = {{"full_attn_layers", full},
                      {"head_dim", shape.kda_head_dim},
                      {"kda_layers", kda},
                      {"num_heads", shape.kda_heads},
                      {"short_conv_kernel_size", 4}};
  if (shape.is_k3) json.update({{"gate_lower_bound", -5.0}, {"use_full_rank_gate", true}});
  return json;
}

OrderedJson Mxfp4() {
  const OrderedJson weights = {
      {"num_bits", 4}, {"group_size", 32}, {"type", "float"}, {"symmetric", true}};
  const OrderedJson group = {{"format", "mxfp4-pack-quantized"},
                             {"input_activations", nullptr},
                             {"targets", {"Linear"}},
                             {"weights", weights}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "mxfp4-pack-quantized"},
          {"config_groups", {{"group_0", group}}}};
}

OrderedJson TextConfig(const Shape& shape, bool mxfp4_experts) {
  OrderedJson json = {{"model_type", "kimi_linear"},
                      {"hidden_size", shape.hidden},
                      {"vocab_size", shape.vocab},
                      {"num_hidden_layers", shape.layers},
                      {"intermediate_size", shape.dense_inner},
                      {"hidden_act", shape.is_k3 ? "situ" : "silu"},
                      {"rms_norm_eps", 1e-5},
                      {"max_position_embeddings", shape.max_context},
                      {"tie_word_embeddings", false},
                      {"bos_token_id", shape.vocab - 256},
                      {"eos_token_id", shape.vocab - 254},
                      {"linear_attn_config", LinearAttention(shape)},
                      {"num_attention_heads", shape.mla_heads},
                      {"num_key_value_heads", shape.mla_heads},
                      {"q_lora_rank", nullptr},
                      {"kv_lora_rank", shape.kv_lora},
                      {"qk_nope_head_dim", shape.nope},
                      {"qk_rope_head_dim", shape.extra},
                      {"v_head_dim", shape.value},
                      {"mla_use_nope", true},
                      {"first_k_dense_replace", 1},
                      {"moe_layer_freq", 1},
                      {"num_experts", shape.experts},
                      {"num_experts_per_token", shape.top_k},
                      {"num_shared_experts", shape.shared_experts},
                      {"moe_intermediate_size", shape.expert_inner},
                      {"moe_renormalize", true},
                      {"moe_router_activation_func", "sigmoid"},
                      {"num_expert_group", 1},
                      {"topk_group", 1},
                      {"routed_scaling_factor", shape.is_k3 ? 1.0 : 2.446},
                      {"num_nextn_predict_layers", 0}};
  if (shape.is_k3 || mxfp4_experts) json["quantization_config"] = Mxfp4();
  if (!shape.is_k3) return json;
  json.update({{"activation_situ_beta", 4.0},
               {"activation_situ_linear_beta", 25.0},
               {"attn_res_block_size", shape.res_block},
               {"q_lora_rank", shape.q_lora},
               {"mla_use_output_gate", true},
               {"routed_expert_hidden_size", shape.latent},
               {"latent_moe_use_norm", true}});
  return json;
}

}  // namespace

std::vector<std::string> PublishedModelNames() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

std::string PublishedConfig(std::string_view name, const ShapeOverrides& overrides) {
  Shape shape = FindShape(name);
  shape.layers = overrides.layers.value_or(shape.layers);
  shape.experts = overrides.experts.value_or(shape.experts);
  shape.top_k = std::min(shape.top_k, shape.experts);
  if (shape.layers == 0 || shape.layers > 1024 || shape.experts == 0 || shape.experts > 16384) {
    throw Error(ErrorCode::kUsage, "expected 1 to 1024 layers and 1 to 16384 experts, found " +
                                       std::to_string(shape.layers) + " and " +
                                       std::to_string(shape.experts));
  }
  OrderedJson json = TextConfig(shape, overrides.mxfp4_experts);
  if (shape.is_k3) {
    json = {{"model_type", "kimi_k3"},
            {"architectures", {"KimiK3ForConditionalGeneration"}},
            {"bos_token_id", json["bos_token_id"]},
            {"eos_token_id", json["eos_token_id"]},
            {"tie_word_embeddings", false},
            {"text_config", json}};
  } else {
    json["architectures"] = {"KimiLinearForCausalLM"};
  }
  return json.dump(2) + "\n";
}

std::string WithMxfp4Experts(const std::string& config_json) {
  OrderedJson json = OrderedJson::parse(config_json, nullptr, false);
  if (!json.is_object()) {
    throw Error(ErrorCode::kBadModel,
                "config.json: expected a JSON object; download the model again");
  }
  json["quantization_config"] = Mxfp4();
  return json.dump(2) + "\n";
}

}  // namespace thimble
