#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token_id.h"
#include "engine/engine.h"
#include "memory/buffer.h"

namespace thimble {

/// A copy of a session in memory: its tokens, the state they left, and the logits after the last
/// one. A session restored from it continues bit for bit as if it had never stopped. Charged to the
/// engine's budget; the engine must outlive it. Movable.
class Snapshot {
 public:
  /// Copies `session`, which must not be poisoned. Error(kOverBudget) if the budget has no room.
  static Snapshot Take(Session& session);

  /// Bytes of a snapshot of `num_tokens` tokens.
  static uint64_t Bytes(const ModelConfig& config, size_t num_tokens,
                        LatentFormat latents = LatentFormat::kF32);

  /// Restores the copy into `session` of the same engine, which may be poisoned. Error(kUsage) if
  /// it has no room for the tokens.
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
