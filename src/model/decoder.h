#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "format/model_config.h"
#include "kernels/kernels.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"
#include "model/kda.h"
#include "model/mla.h"
#include "model/mlp.h"
#include "model/moe.h"
#include "model/residuals.h"
#include "model/state_cache.h"
#include "model/sweep.h"
#include "model/weights.h"

namespace thimble {

/// Which of a session's tokens in a sweep want logits.
enum class LogitsWanted : uint8_t { kNone, kLast, kAll };

/// One session's part of a sweep.
struct SweepItem {
  StateCache* state = nullptr;
  std::span<const uint32_t> tokens;  // at least one
  LogitsWanted wanted = LogitsWanted::kNone;
  float* logits = nullptr;  // [1 or tokens.size(), vocab_size], as wanted
};

/// The sizes a Decoder is built for.
struct DecoderLimits {
  size_t max_tokens = 1;    // tokens of one sweep, over all its sessions
  size_t max_sessions = 1;  // sessions of one sweep
  size_t num_threads = 1;
  LatentFormat latents = LatentFormat::kF32;  // of every state it advances
};

/// The forward pass: one sweep over the layers advances one or several sessions, each by one or
/// more tokens. A token's logits are the same bits for every other content of the sweep, every cut
/// of its prompt and every thread count. Reads weights only through its ports, allocates nothing
/// and does no I/O. Used by one thread at a time.
class Decoder {
 public:
  /// Borrows all arguments. The workspace is charged to `budget`.
  Decoder(const ModelConfig& config, const DecoderLimits& limits, const Kernels& kernels,
          ThreadPool& pool, LayerSource& layers, ExpertSource& experts, MemoryBudget& budget);

  /// Bytes of the workspace.
  static uint64_t WorkspaceBytes(const ModelConfig& config, const DecoderLimits& limits);

  /// Error(kUsage) unless `state` can advance by `tokens`: it is not poisoned and has room for all
  /// of them, each id is in the vocabulary, and there is at least one. A sweep checks each item.
  void CheckTokens(const StateCache& state, std::span<const uint32_t> tokens) const;

  /// Advances each item's state by its tokens and writes the requested logits. Error(kUsage),
  /// before anything changes, if CheckTokens refuses or a limit is exceeded. Any later error
  /// poisons all states of the sweep.
  void Sweep(std::span<const SweepItem> items, SweepObserver* observer);

 private:
  // Everything that is carved from the workspace. The mixers and the feed-forward never run at the
  // same time, so their arrays share memory.
  struct Workspace {
    Workspace(const ModelConfig& config, const DecoderLimits& limits, Carver& carver);

    LayerParams params;
    Residuals residuals;
    Rows mixed;  // [hidden], the input of a sublayer before and after its norm
    Rows packed;
    Rows output;       // of a sublayer
    float* head_norm;  // of the final norm and mix, [hidden]
    float* head_mix;
    uint32_t* tokens;  // ids of the sweep, in a row
    Span* spans;
    uint64_t shared_from;  // where the memory that the rest shares begins
    KdaMixer kda;
    MlaMixer mla;
    Mlp mlp;
    MoeLayer moe;
  };

  void Check(std::span<const SweepItem> items) const;
  SweepTokens Gather(std::span<const SweepItem> items);
  void RunLayer(size_t layer, const SweepTokens& tokens);
  void Normalise(const float* mix, const float* norm, size_t token, size_t row);
  void CheckFinite(size_t layer, size_t num_tokens) const;
  void CheckLogits(std::span<const SweepItem> items) const;
  void WriteLogits(std::span<const SweepItem> items, const SweepTokens& tokens);

  const ModelConfig& config_;
  DecoderLimits limits_;
  Executor executor_;
  ExpertSource& experts_;
  std::vector<std::vector<TensorSpec>> layer_tensors_;
  Buffer buffer_;
  Carver carver_;
  Workspace work_;
};

}  // namespace thimble
