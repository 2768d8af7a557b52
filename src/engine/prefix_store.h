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

/// Snapshots keyed by their tokens, within a limit in bytes. A prompt that begins like an earlier
/// one is computed only from the first difference. A recurrent state cannot be cut back, so only
/// whole snapshots can be reused. Used only by the engine's thread.
class PrefixStore {
 public:
  /// Prompts below this length, such as a client's request for a title, never evict the snapshot of
  /// a longer one.
  static constexpr size_t kShortTokens = 256;

  /// `limit_bytes` should be what the engine reserved (EngineOptions::snapshot_bytes).
  explicit PrefixStore(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Keeps a snapshot of `session`. If one with the same tokens exists, it is marked as used
  /// instead. Evicts the least recently useful ones to make room; if that is not enough, or if a
  /// short snapshot would evict a long one, nothing is kept and nothing evicted. Returns whether
  /// the snapshot is kept.
  bool Keep(Session& session);

  /// The longest snapshot whose tokens are a prefix of `tokens`, or null. A snapshot of all of them
  /// counts only if it has logits. Marks it as used; it is valid until the next Keep.
  const Snapshot* Find(std::span<const TokenId> tokens);

  /// Sets `session` to the longest known prefix of `tokens`: what it already holds, a snapshot, or
  /// nothing. Returns the length of that prefix, which equals the length of `tokens` only if the
  /// session then has their logits.
  size_t Resume(Session& session, std::span<const TokenId> tokens);

  size_t size() const { return entries_.size(); }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t limit_bytes() const { return limit_bytes_; }

 private:
  bool MakeRoom(uint64_t bytes, size_t num_tokens);

  const uint64_t limit_bytes_;
  uint64_t used_bytes_ = 0;
  std::list<Snapshot> entries_;  // most recently used first
};

}  // namespace thimble
