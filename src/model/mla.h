#pragma once

#include <cstddef>

#include "format/model_config.h"
#include "kernels/latents.h"
#include "memory/buffer.h"
#include "model/executor.h"
#include "model/layer_params.h"
#include "model/sweep.h"

namespace thimble {

/// Multi-head latent attention without positions, with an output gate (docs/MODEL.md; DeepSeek-V2,
/// arXiv 2405.04434, section 2.1), in its absorbed form: with kv_b split by head into W_UK and
/// W_UV,
///
///   c = rms(kv_a x),  cache <- (c, p);  q~ = W_UK^T q_nope
///   s_j = (q~ . c_j + q_extra . p_j) / sqrt(nope + extra),  a = softmax(s)
///   y = o_proj ((W_UV sum_j a_j c_j) * sigmoid(g_proj x))
///
/// so that only the latent is stored, and every token, alone or in a chunk, takes the same path.
class MlaMixer {
 public:
  /// How much it is made for.
  struct Sizes {
    size_t max_tokens;
    size_t num_threads;
    LatentFormat latents;  // of every state that it advances
  };
  MlaMixer(const ModelConfig& config, const Sizes& sizes, Carver& carver);

  /// y[t] = the mixer's output; x is the packed, normalised input. Advances the states of `tokens`.
  void Forward(const Executor& executor, size_t layer, const LayerParams& params,
               const SweepTokens& tokens, const Rows& x, const Rows& y);

 private:
  // Heads that follow one another, and their rows of kv_b.
  struct Heads {
    WeightMatrix kv_b;
    size_t first;
    size_t count;
  };
  // Queries that share a pass over the latents: some heads of some tokens that follow one another.
  struct Tile {
    size_t first_row;  // of the sweep's activation rows
    size_t num_tokens;
    Heads heads;
    const uint8_t* latents;
    size_t num_positions;  // of the first token
  };

  void ProjectQuery(const Executor& executor, size_t layer, const LayerParams& params,
                    size_t num_tokens, const Rows& x);
  void AppendLatents(const Executor& executor, size_t layer, const LayerParams& params,
                     const SweepTokens& tokens, const Rows& x);
  void Attend(const Executor& executor, size_t layer, const SweepTokens& tokens);
  void AttendSpan(const Executor& executor, size_t layer, const Span& span, const Heads& heads);
  void AttendTile(const Executor& executor, const Tile& tile, size_t part) const;

  const ModelConfig& config_;
  LatentShape shape_;
  float scale_;
  Rows low_query_;  // q_a x, normalised
  Rows low_query_packed_;
  Rows query_;  // [heads, nope + extra]
  Rows kv_;     // [kv_lora_rank + extra]
  Rows gate_;
  Rows out_;  // [heads, value_dim]
  Rows out_packed_;
  size_t most_queries_;  // of a tile
  Rows absorbed_;        // so many rows for each thread, like the next two
  Rows context_;
  Rows context_packed_;
  Rows decoded_;  // a block of the cache for each thread; none where it is float32
};

}  // namespace thimble
