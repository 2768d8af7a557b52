#pragma once

#include <cstddef>
#include <span>

#include "format/model_config.h"
#include "memory/buffer.h"
#include "model/executor.h"

namespace thimble {

/// The small tensors of one layer in float32: norms, convolutions, biases. Loaded again for
/// each layer of a sweep. A pointer is null if the layer has no such tensor.
struct LayerParams {
  float* input_norm = nullptr;      // [hidden]
  float* post_norm = nullptr;       // [hidden]
  float* attn_mix = nullptr;        // [hidden], norm weight * projection weight
  float* mlp_mix = nullptr;         // [hidden], likewise
  float* conv[3] = {};              // q, k, v: [conv_width, heads * head_dim], tap by tap
  float* dt_bias = nullptr;         // [heads * head_dim]
  float* alpha = nullptr;           // [heads], e^A_log
  float* out_norm = nullptr;        // [head_dim]
  float* query_norm = nullptr;      // [q_lora_rank]
  float* latent_kv_norm = nullptr;  // [kv_lora_rank]
  float* router_bias = nullptr;     // [experts]
  float* expert_norm = nullptr;     // [latent_size]
  float* scratch = nullptr;         // the largest small tensor, before it is reordered

  /// Lays out the arrays that any layer of `config` needs.
  static LayerParams Lay(const ModelConfig& config, Carver& carver);
  /// Reads the small ones among `tensors`, the tensors of `layer` in reading order.
  void Load(const ModelConfig& config, size_t layer, std::span<const TensorSpec> tensors,
            const Executor& executor);
};

/// Reads one small tensor of `count` elements into float32.
void LoadVector(const TensorAddress& tensor, size_t count, const Executor& executor, float* out);

}  // namespace thimble
