#include "text/piece_merger.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/error.h"

namespace thimble {
namespace {

/// Where the heap overtakes the scan: BM_Merge in bench/tokenizer_bench.cc.
constexpr size_t kMaxScanBytes = 64;

}  // namespace

TokenId PieceMerger::RankOf(size_t begin, size_t end) const {
  return ranks_.Find(piece_.substr(begin, end - begin)).value_or(kNoRank);
}

TokenId PieceMerger::IdOf(size_t begin, size_t end) const {
  const TokenId id = RankOf(begin, end);
  THIMBLE_CHECK(id != kNoRank);
  return id;
}

/// One part for each byte, linked both ways, and the sentinel, which closes the ring.
void PieceMerger::StartFromBytes(std::string_view piece) {
  THIMBLE_CHECK(piece.size() < std::numeric_limits<uint32_t>::max());
  piece_ = piece;
  const uint32_t size = static_cast<uint32_t>(piece.size());
  parts_.resize(piece.size() + 1);
  for (uint32_t i = 0; i <= size; ++i) {
    const TokenId pair_rank = i + 2 <= size ? RankOf(i, i + 2) : kNoRank;
    parts_[i] = {i, pair_rank, i == 0 ? size : i - 1, i == size ? 0 : i + 1};
  }
}

void PieceMerger::MergeByScan(std::string_view piece, std::vector<TokenId>* ids) {
  if (piece.empty()) return;
  StartFromBytes(piece);
  const auto by_rank = [](const Part& a, const Part& b) { return a.pair_rank < b.pair_rank; };
  // Of part i with its neighbour; the parts are contiguous here, so the neighbour is i + 1.
  const auto pair_rank = [this](size_t i) {
    return i + 2 < parts_.size() ? RankOf(parts_[i].start, parts_[i + 2].start) : kNoRank;
  };
  for (;;) {
    const auto best = std::min_element(parts_.begin(), parts_.end(), by_rank);
    if (best->pair_rank == kNoRank) break;
    const size_t i = static_cast<size_t>(best - parts_.begin());
    parts_.erase(best + 1);
    parts_[i].pair_rank = pair_rank(i);
    if (i > 0) parts_[i - 1].pair_rank = pair_rank(i - 1);
  }
  for (size_t i = 0; i + 1 < parts_.size(); ++i) {
    ids->push_back(IdOf(parts_[i].start, parts_[i + 1].start));
  }
}

void PieceMerger::UpdatePair(uint32_t index) {
  Part& part = parts_[index];
  const uint32_t sentinel = static_cast<uint32_t>(piece_.size());
  part.pair_rank =
      part.next == sentinel ? kNoRank : RankOf(part.start, parts_[parts_[part.next].next].start);
}

void PieceMerger::PushPair(uint32_t index) {
  const TokenId rank = parts_[index].pair_rank;
  if (rank == kNoRank) return;
  heap_.push_back(uint64_t{rank} << 32 | index);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

/// The leftmost part with the lowest pair rank, or the sentinel if no pair is left.
uint32_t PieceMerger::PopLowestPair() {
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint64_t top = heap_.back();
    heap_.pop_back();
    const uint32_t index = static_cast<uint32_t>(top);
    if (parts_[index].pair_rank == static_cast<TokenId>(top >> 32)) return index;
  }
  return static_cast<uint32_t>(piece_.size());
}

void PieceMerger::MergeByHeap(std::string_view piece, std::vector<TokenId>* ids) {
  if (piece.empty()) return;
  StartFromBytes(piece);
  const uint32_t sentinel = static_cast<uint32_t>(piece.size());
  heap_.clear();
  for (uint32_t i = 0; i < sentinel; ++i) {
    if (parts_[i].pair_rank != kNoRank) heap_.push_back(uint64_t{parts_[i].pair_rank} << 32 | i);
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());

  for (uint32_t i = PopLowestPair(); i != sentinel; i = PopLowestPair()) {
    Part& removed = parts_[parts_[i].next];
    removed.pair_rank = kNoRank;  // outdates its entries
    parts_[i].next = removed.next;
    parts_[removed.next].previous = i;
    UpdatePair(i);
    PushPair(i);
    if (i > 0) {
      UpdatePair(parts_[i].previous);
      PushPair(parts_[i].previous);
    }
  }
  for (uint32_t i = 0; i != sentinel; i = parts_[i].next) {
    ids->push_back(IdOf(parts_[i].start, parts_[parts_[i].next].start));
  }
}

void PieceMerger::Merge(std::string_view piece, std::vector<TokenId>* ids) {
  if (piece.size() <= kMaxScanBytes) {
    MergeByScan(piece, ids);
  } else {
    MergeByHeap(piece, ids);
  }
}

}  // namespace thimble
