#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token_id.h"
#include "engine/engine.h"
#include "memory/buffer.h"

namespace thimble {

/// All of a session at one moment, in memory: its tokens, the state that they left, and the logits
/// after the last. A session restored from it goes on as if it had never stopped, bit for bit.
/// Charged to the engine's budget, which it must not outlive. Movable.
class Snapshot {
 public:
  /// Copies `session`, which must not be poisoned. Error(kOverBudget) where the budget has no room.
  static Snapshot Take(Session& session);

  /// Bytes of a snapshot of `num_tokens` tokens.
  static uint64_t Bytes(const ModelConfig& config, size_t num_tokens,
                        LatentFormat latents = LatentFormat::kF32);

  /// Makes `session`, of the same engine, what the other one was; it may be poisoned. Error(kUsage)
  /// where it has no room for the tokens.
  void RestoreTo(Session& session) const;

  const std::vector<TokenId>& tokens() const { return tokens_; }
  bool has_logits() const { return has_logits_; }
  uint64_t bytes() const { return buffer_.bytes(); }

 private:
  Snapshot() = default;

  std::vector<TokenId> tokens_;
  bool has_logits_ = false;
  Buffer buffer_;  // the pieces of the state, then the logits
};

}  // namespace thimble
