#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>

#include "base/token_id.h"
#include "engine/snapshot.h"

namespace thimble {

/// Whether `tokens` begin with all of `prefix`.
bool IsPrefix(std::span<const TokenId> prefix, std::span<const TokenId> tokens);

/// Snapshots by their tokens, inside a limit of bytes: a prompt that begins like an earlier one is
/// computed from where they part. A recurrent state cannot be cut back, so only whole snapshots
/// serve. Used by one thread, the engine's.
class PrefixStore {
 public:
  /// Prompts below so many tokens, such as a client's request for a title, never push out the
  /// snapshot of a longer one.
  static constexpr size_t kShortTokens = 256;

  /// `limit_bytes` should be what the engine set aside (EngineOptions::snapshot_bytes).
  explicit PrefixStore(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Keeps a snapshot of `session`, unless one of the same tokens is there: then that one counts as
  /// used. Makes room by dropping those that were useful longest ago; where that is not enough, or
  /// where a short one would have to push out a long one, nothing is kept, and nothing dropped.
  /// Returns whether it is kept.
  bool Keep(Session& session);

  /// The longest snapshot whose tokens begin `tokens`, null where there is none. One of all tokens
  /// counts only if it has logits. It then counts as used, and is valid until the next Keep.
  const Snapshot* Find(std::span<const TokenId> tokens);

  /// Makes `session` the longest beginning of `tokens` that is known: what it holds already, a
  /// snapshot, or nothing. Returns how many tokens need not be computed any more. All of them only
  /// where the session then has their logits.
  size_t Resume(Session& session, std::span<const TokenId> tokens);

  size_t size() const { return entries_.size(); }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t limit_bytes() const { return limit_bytes_; }

 private:
  bool MakeRoom(uint64_t bytes, size_t num_tokens);

  const uint64_t limit_bytes_;
  uint64_t used_bytes_ = 0;
  std::list<Snapshot> entries_;  // the latest used first
};

}  // namespace thimble
