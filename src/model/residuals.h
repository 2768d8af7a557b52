#pragma once

#include <cstddef>

#include "format/model_config.h"
#include "memory/buffer.h"
#include "model/executor.h"

namespace thimble {

/// The residual stream of the tokens of one sweep (docs/MODEL.md, attention residuals):
///
///   s_i = (c_i . w) / sqrt(mean(c_i^2) + eps),  p = softmax(s),  mix = sum_i p_i c_i
///
/// over the stored blocks, oldest first, and then the running sum `cur`. With attn_res_block = 0
/// this is the ordinary residual stream: mix = cur. It mixes over depth only, so it lives for one
/// sweep.
class Residuals {
 public:
  Residuals(const ModelConfig& config, size_t max_tokens, Carver& carver);

  /// Starts a sweep: `cur` is what the caller wrote to current().
  void Begin(size_t num_tokens);
  /// The running sum, [num_tokens, hidden].
  Rows current() const { return current_; }

  /// mixed[t] = mix of token t under `weight` (norm * projection), or cur where nothing is stored.
  void Mix(const Executor& executor, const float* weight, size_t token, float* mixed) const;
  /// Opens a new block where `layer` begins one: stores `cur`, which then restarts from nothing.
  /// Call it after the mix of the layer's attention and before Add.
  void StartLayer(size_t layer);
  /// cur += x, or cur = x where it restarted.
  void Add(const Executor& executor, const Rows& x);

 private:
  size_t hidden_;
  size_t block_;
  float eps_;
  Rows current_;
  float* storage_ = nullptr;  // [blocks + 1][max_tokens][hidden]; cur takes the next free block
  size_t block_floats_;
  Rows scores_;  // [max_tokens][blocks + 1]
  size_t num_tokens_ = 0;
  size_t num_blocks_ = 0;
  bool restarted_ = false;
};

}  // namespace thimble
