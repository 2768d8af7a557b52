#include "text/token_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace thimble {
namespace {

uint64_t Hash(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint32_t Tag(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

}  // namespace

TokenTable::TokenTable() : offsets_(1, 0), slots_(64) {}

size_t TokenTable::FindSlot(std::string_view bytes, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.id == kEmpty) return i;
    if (slot.tag == Tag(hash) && (*this)[slot.id] == bytes) return i;
  }
}

std::optional<TokenId> TokenTable::Find(std::string_view bytes) const {
  if (bytes.size() > longest_) return std::nullopt;
  const Slot& slot = slots_[FindSlot(bytes, Hash(bytes))];
  if (slot.id == kEmpty) return std::nullopt;
  return slot.id;
}

bool TokenTable::Add(std::string_view bytes) {
  const uint64_t hash = Hash(bytes);
  const size_t free = FindSlot(bytes, hash);
  if (slots_[free].id != kEmpty) return false;
  THIMBLE_CHECK(size() < kEmpty - 1);
  THIMBLE_CHECK(bytes.size() <= std::numeric_limits<uint32_t>::max() - bytes_.size());
  const TokenId id = size();
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
  longest_ = std::max(longest_, bytes.size());
  if (size_t{size()} * 2 > slots_.size()) {
    Grow();
  } else {
    slots_[free] = {Tag(hash), id};
  }
  return true;
}

void TokenTable::Grow() {
  slots_.assign(slots_.size() * 2, Slot{});
  const size_t mask = slots_.size() - 1;
  for (TokenId id = 0; id < size(); ++id) {
    const uint64_t hash = Hash((*this)[id]);
    size_t i = hash & mask;
    while (slots_[i].id != kEmpty) i = (i + 1) & mask;
    slots_[i] = {Tag(hash), id};
  }
}

size_t TokenTable::memory_bytes() const {
  return bytes_.capacity() + offsets_.capacity() * sizeof(uint32_t) +
         slots_.capacity() * sizeof(Slot);
}

}  // namespace thimble
