#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "format/model_config.h"
#include "kernels/latents.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"

namespace thimble {

/// Everything a conversation carries from token to token (docs/MODEL.md):
/// - of each KDA layer the state S [heads, head_dim (key), head_dim (value)] and the last
///   conv_width - 1 raw projections of q, k and v, oldest first: [3, conv_width - 1, heads *
///   head_dim];
/// - of each MLA layer the normalised latent and the extra key part of every token:
///   [capacity] rows of kv_lora_rank + extra_dim elements, stored as `latents` says.
/// All else is float32. Append-only: a recurrent state cannot be cut back.
class StateCache {
 public:
  /// An empty state with room for `capacity` tokens; borrows the configuration. Error(kOverBudget).
  StateCache(const ModelConfig& config, size_t capacity, MemoryBudget& budget,
             LatentFormat latents = LatentFormat::kF32);

  /// Bytes that a state of `capacity` tokens is charged.
  static uint64_t Bytes(const ModelConfig& config, size_t capacity,
                        LatentFormat latents = LatentFormat::kF32);

  /// Its memory, to be locked against swapping.
  Buffer& buffer() { return buffer_; }

  size_t num_tokens() const { return num_tokens_; }
  size_t capacity() const { return capacity_; }
  /// The rows of the MLA layers.
  const LatentShape& latent_shape() const { return latent_shape_; }

  /// A sweep that fails leaves layers at different tokens. Such a state is poisoned: it must be
  /// cleared or restored from a snapshot before it can advance.
  bool poisoned() const { return advancing_; }
  void BeginAdvance() { advancing_ = true; }
  void CommitAdvance(size_t num_tokens) {
    num_tokens_ += num_tokens;
    advancing_ = false;
  }

  /// The state of `num_tokens` <= capacity tokens as ranges of memory in a fixed order. A snapshot
  /// copies them out and in.
  std::vector<std::span<std::byte>> Pieces(size_t num_tokens);
  /// Bytes of all of them together.
  static uint64_t PieceBytes(const ModelConfig& config, size_t num_tokens,
                             LatentFormat latents = LatentFormat::kF32);
  /// Call after all pieces of `num_tokens` tokens were overwritten. The state is then theirs.
  void Restore(size_t num_tokens) {
    num_tokens_ = num_tokens;
    advancing_ = false;
  }

  /// Views of one layer; `layer` must be of that kind.
  float* KdaState(size_t layer) { return layers_[layer].kda_state; }
  float* KdaHistory(size_t layer) { return layers_[layer].kda_history; }
  uint8_t* Latents(size_t layer) { return layers_[layer].latents; }

 private:
  struct LayerViews {
    float* kda_state = nullptr;
    float* kda_history = nullptr;
    uint8_t* latents = nullptr;
  };
  static std::vector<LayerViews> Lay(const ModelConfig& config, uint64_t latent_bytes,
                                     Carver& carver);

  const ModelConfig& config_;
  size_t capacity_;
  LatentShape latent_shape_;
  size_t num_tokens_ = 0;
  bool advancing_ = false;
  Buffer buffer_;
  std::vector<LayerViews> layers_;
};

}  // namespace thimble
