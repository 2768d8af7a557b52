#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/token_id.h"

namespace thimble {

/// Byte strings numbered 0, 1, 2, ... in the order added, found by number or by content.
///
/// One buffer of bytes, one of offsets and an open-addressing index of eight bytes a slot: about
/// 6 MiB for 163,584 tokens. Movable; safe to read from any thread once nothing is added any more.
class TokenTable {
 public:
  TokenTable();

  /// Appends `bytes` as number size(); false, and no change, if they are in the table already.
  /// At most 2^32 - 2 strings and 2^32 - 1 bytes in all: callers bound their input first.
  bool Add(std::string_view bytes);

  /// The number of `bytes`, if they are in the table. One hash, usually one probe.
  std::optional<TokenId> Find(std::string_view bytes) const;

  /// The string numbered `id` < size(). Valid until the next Add or the table's end, moves
  /// excepted.
  std::string_view operator[](TokenId id) const {
    return {bytes_.data() + offsets_[id], offsets_[id + 1] - offsets_[id]};
  }

  TokenId size() const { return static_cast<TokenId>(offsets_.size() - 1); }
  size_t longest() const { return longest_; }

  /// What the table holds of memory.
  size_t memory_bytes() const;

 private:
  static constexpr TokenId kEmpty = ~TokenId{0};

  struct Slot {
    uint32_t tag = 0;     // high half of the hash: most misses need not look at the bytes
    TokenId id = kEmpty;  // kEmpty: the end of a probe
  };

  /// The index of the slot that holds `bytes`, else of the empty one where they would go.
  size_t FindSlot(std::string_view bytes, uint64_t hash) const;
  void Grow();

  std::vector<char> bytes_;  // not std::string, whose short form would move with the table
  std::vector<uint32_t> offsets_;
  std::vector<Slot> slots_;  // a power of two, at most half of them used
  size_t longest_ = 0;
};

}  // namespace thimble
