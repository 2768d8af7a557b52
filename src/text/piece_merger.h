#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/token_table.h"

namespace thimble {

/// Byte pair encoding of one piece: starting from single bytes, the adjacent pair whose
/// concatenation has the lowest rank is merged, the leftmost of equals, until no pair is a token.
///
/// Holds only scratch, so that one text's pieces share it. Borrows the table, which must contain
/// every single byte. One thread at a time.
class PieceMerger {
 public:
  explicit PieceMerger(const TokenTable& ranks) : ranks_(ranks) {}

  /// Appends the ids of `piece`, which is below 4 GiB, to *ids.
  void Merge(std::string_view piece, std::vector<TokenId>* ids);

  /// The two ways that Merge chooses from by length; always the same ids. The scan looks at every
  /// pair before each merge: quadratic, and the faster one for short pieces. The heap takes
  /// O(n log n), for pieces of tens of thousands of bytes.
  void MergeByScan(std::string_view piece, std::vector<TokenId>* ids);
  void MergeByHeap(std::string_view piece, std::vector<TokenId>* ids);

 private:
  static constexpr TokenId kNoRank = ~TokenId{0};

  /// A part of the piece that is a token so far: it reaches to the start of the next one.
  struct Part {
    uint32_t start;
    TokenId pair_rank;  // of this part with the next; kNoRank if that is no token
    uint32_t previous;  // index of the neighbours; only the heap uses them
    uint32_t next;
  };

  TokenId RankOf(size_t begin, size_t end) const;
  TokenId IdOf(size_t begin, size_t end) const;
  void StartFromBytes(std::string_view piece);
  void UpdatePair(uint32_t index);
  void PushPair(uint32_t index);
  uint32_t PopLowestPair();

  const TokenTable& ranks_;
  std::string_view piece_;
  std::vector<Part> parts_;     // the last one is a sentinel at the piece's end
  std::vector<uint64_t> heap_;  // pair_rank << 32 | index of part; may hold outdated entries
};

}  // namespace thimble
