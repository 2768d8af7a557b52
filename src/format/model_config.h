#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codec/weight_matrix.h"

namespace thimble {

enum class Architecture : uint8_t { kKimiK3, kKimiLinear };
enum class MixerKind : uint8_t { kKda, kMla };
enum class FeedForwardKind : uint8_t { kDense, kMoe };
enum class RouterScore : uint8_t { kSigmoid, kSoftmax };

/// What one layer is made of.
struct LayerSpec {
  MixerKind mixer;
  FeedForwardKind feed_forward;
  bool operator==(const LayerSpec&) const = default;
};

/// Kimi Delta Attention (docs/MODEL.md, KDA).
struct KdaConfig {
  size_t num_heads = 0;
  size_t head_dim = 0;
  size_t conv_width = 0;
  std::optional<float> gate_lower_bound;  // absent: the softplus decay
  bool full_rank_gate = false;            // g_proj; otherwise g_a_proj and g_b_proj

  size_t ProjectionSize() const { return num_heads * head_dim; }
};

/// Multi-head latent attention without positions (docs/MODEL.md, MLA).
struct MlaConfig {
  size_t num_heads = 0;
  size_t q_lora_rank = 0;  // 0: plain q_proj
  size_t kv_lora_rank = 0;
  size_t nope_dim = 0;   // qk_nope_head_dim
  size_t extra_dim = 0;  // qk_rope_head_dim; never rotated
  size_t value_dim = 0;
  bool output_gate = false;

  size_t QueryDim() const { return nope_dim + extra_dim; }
  size_t CacheDim() const { return kv_lora_rank + extra_dim; }
};

/// Mixture of experts (docs/MODEL.md, feed-forward).
struct MoeConfig {
  size_t num_experts = 0;
  size_t top_k = 0;
  size_t latent_size = 0;  // routed_expert_hidden_size; 0: experts act on the hidden size
  bool latent_norm = false;
  size_t inner_size = 0;         // of one expert
  size_t shared_inner_size = 0;  // of the one fused shared MLP; 0: none
  size_t num_groups = 1;
  size_t top_groups = 1;
  bool renormalize = true;
  float scaling_factor = 1.0F;
  RouterScore score = RouterScore::kSigmoid;
  WeightFormat format = WeightFormat::kBF16;  // of the routed experts: kMXFP4 or kBF16
};

/// Gated activation of every MLP: SiTU where beta is set, SiLU otherwise.
struct ActivationConfig {
  std::optional<float> situ_beta;
  float situ_linear_beta = 0.0F;  // 0: the up branch is used as it is
};

/// The shape of a model, as its `config.json` says. Immutable, and valid if it exists: every size
/// is positive, bounded (below 2^31, products below 2^62) and consistent with the others.
struct ModelConfig {
  Architecture architecture = Architecture::kKimiK3;
  size_t hidden_size = 0;
  size_t vocab_size = 0;
  size_t max_context = 0;
  float rms_eps = 0.0F;
  size_t dense_inner_size = 0;
  size_t attn_res_block = 0;  // layers in one block of attention residuals; 0: ordinary residuals
  KdaConfig kda;
  MlaConfig mla;
  MoeConfig moe;
  ActivationConfig activation;
  std::vector<LayerSpec> layers;
  std::optional<uint32_t> bos_id;
  std::vector<uint32_t> eos_ids;  // of config.json and, where present, generation_config.json

  size_t num_layers() const { return layers.size(); }
  /// Width that the routed experts read and write.
  size_t ExpertWidth() const { return moe.latent_size != 0 ? moe.latent_size : hidden_size; }
  /// Stored blocks of attention residuals after the last layer: ceil(layers / attn_res_block).
  size_t NumResidualBlocks() const {
    return attn_res_block == 0 ? 0 : (num_layers() + attn_res_block - 1) / attn_res_block;
  }
};

/// Reads a configuration from the text of `config.json`; `source` names it in messages. Kimi K3
/// nests the text model under `text_config`; Kimi-Linear is flat. Error(kBadModel) names the field,
/// what was expected and what was found: unknown architectures, missing, contradictory or unbounded
/// fields, and features that Thimble does not compute.
ModelConfig ParseModelConfig(std::string_view json, const std::string& source);

/// Reads `dir`/config.json, and `dir`/generation_config.json for further end-of-text ids.
ModelConfig ReadModelConfig(const std::filesystem::path& dir);

}  // namespace thimble
