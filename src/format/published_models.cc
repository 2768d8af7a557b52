#include "format/published_models.h"

#include <array>
#include <utility>

namespace thimble {
namespace {

// Only the fields that Thimble reads, with the published values.
constexpr std::string_view kKimiK3 = R"({
  "model_type": "kimi_k3", "bos_token_id": 163584, "eos_token_id": 163586,
  "text_config": {
    "model_type": "kimi_linear", "hidden_size": 7168, "vocab_size": 163840,
    "num_hidden_layers": 93, "max_position_embeddings": 1048576, "rms_norm_eps": 1e-5,
    "intermediate_size": 33792, "attn_res_block_size": 12,
    "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
    "num_attention_heads": 96, "num_key_value_heads": 96, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "mla_use_nope": true, "mla_use_output_gate": true,
    "linear_attn_config": {
      "num_heads": 96, "head_dim": 128, "short_conv_kernel_size": 4,
      "gate_lower_bound": -5.0, "use_full_rank_gate": true,
      "full_attn_layers": [
        4,8,12,16,20,24,28,32,36,40,44,48,52,56,60,64,68,72,76,80,84,88,92,93],
      "kda_layers": [
        1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,21,22,23,25,26,27,29,30,31,33,34,35,37,38,39,41,42,
        43,45,46,47,49,50,51,53,54,55,57,58,59,61,62,63,65,66,67,69,70,71,73,74,75,77,78,79,81,82,
        83,85,86,87,89,90,91]},
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_experts": 896,
    "num_experts_per_token": 16, "num_shared_experts": 2, "moe_intermediate_size": 3072,
    "routed_expert_hidden_size": 3584, "latent_moe_use_norm": true, "moe_renormalize": true,
    "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "quantization_config": {"format": "mxfp4-pack-quantized", "config_groups": {"group_0": {
      "weights": {"num_bits": 4, "group_size": 32, "type": "float", "symmetric": true}}}}}
})";

constexpr std::string_view kKimiLinear48B = R"({
  "model_type": "kimi_linear", "bos_token_id": 163584, "eos_token_id": 163586,
  "hidden_size": 2304, "vocab_size": 163840, "num_hidden_layers": 27,
  "model_max_length": 1048576, "rms_norm_eps": 1e-5, "intermediate_size": 9216,
  "hidden_act": "silu",
  "num_attention_heads": 32, "num_key_value_heads": 32, "q_lora_rank": null,
  "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
  "mla_use_nope": true,
  "linear_attn_config": {
    "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
    "full_attn_layers": [
      4,8,12,16,20,24,27],
    "kda_layers": [
      1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,21,22,23,25,26]},
  "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_experts": 256,
  "num_experts_per_token": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024,
  "moe_renormalize": true, "moe_router_activation_func": "sigmoid", "num_expert_group": 1,
  "topk_group": 1, "routed_scaling_factor": 2.446
})";

using Published = std::pair<std::string_view, std::string_view>;
constexpr std::array<Published, 2> kModels = {
    {{"kimi-k3", kKimiK3}, {"kimi-linear-48b", kKimiLinear48B}}};

}  // namespace

std::string_view PublishedConfig(std::string_view name) {
  for (const auto& [known, config] : kModels) {
    if (known == name) return config;
  }
  return {};
}

std::vector<std::string_view> PublishedNames() {
  std::vector<std::string_view> names;
  for (const auto& [name, config] : kModels) names.push_back(name);
  return names;
}

}  // namespace thimble
