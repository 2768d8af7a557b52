#pragma once

#include <cstddef>

#include "format/model_config.h"
#include "memory/buffer.h"
#include "model/executor.h"
#include "model/layer_params.h"
#include "model/sweep.h"

namespace thimble {

/// Kimi Delta Attention (docs/MODEL.md; Kimi Linear, arXiv 2510.26692, section 3). For each head:
///
///   q, k, v = silu(conv(W x)), q and k L2-normalised, q scaled by head_dim^-1/2
///   g = bound * sigmoid(alpha z)  or  -alpha * softplus(z),   z = f_b (f_a x) + dt_bias
///   S <- diag(e^g) S;  S <- S + k (beta (v - S^T k))^T;  o = S^T q
///   y = o_proj (rms(o; o_norm) * sigmoid(gate))
class KdaMixer {
 public:
  KdaMixer(const ModelConfig& config, size_t max_tokens, Carver& carver);

  /// y[t] = the mixer's output; x is the packed, normalised input. Advances the states of `tokens`.
  void Forward(const Executor& executor, size_t layer, const LayerParams& params,
               const SweepTokens& tokens, const Rows& x, const Rows& y);

 private:
  void Project(const Executor& executor, size_t layer, size_t num_tokens, const Rows& x);
  void Convolve(const Executor& executor, size_t layer, const LayerParams& params,
                const Span& span);
  void Activate(const Executor& executor, const LayerParams& params, size_t token);
  void Recur(const Executor& executor, size_t layer, const SweepTokens& tokens);

  const ModelConfig& config_;
  Rows qkv_[3];  // raw projections, then the convolved and normalised q, k, v
  Rows decay_;   // z, then e^g
  Rows beta_;    // [heads]
  Rows gate_;
  Rows low_;  // f_a x or g_a x
  Rows low_packed_;
  Rows out_;
  Rows out_packed_;
  float* history_;  // [3, conv_width - 1, channels]: the history that follows this sweep
};

}  // namespace thimble
