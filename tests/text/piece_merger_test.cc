#include "text/piece_merger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "support/small_ranks.h"
#include "text/rank_file.h"

namespace thimble {
namespace {

using Ids = std::vector<TokenId>;
using testing::ElementsAre;

/// The definition, word for word.
Ids MergeNaively(const TokenTable& ranks, std::string_view piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    std::optional<TokenId> lowest;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto rank = ranks.Find(parts[i] + parts[i + 1]);
      if (rank && (!lowest || *rank < *lowest)) {
        lowest = rank;
        at = i;
      }
    }
    if (!lowest) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(*ranks.Find(part));
  return ids;
}

Ids ByScan(const TokenTable& ranks, std::string_view piece) {
  Ids ids;
  PieceMerger(ranks).MergeByScan(piece, &ids);
  return ids;
}

Ids ByHeap(const TokenTable& ranks, std::string_view piece) {
  Ids ids;
  PieceMerger(ranks).MergeByHeap(piece, &ids);
  return ids;
}

/// Random tokens over few letters: ties, overlaps, and tokens that no merge can reach.
TokenTable RandomRanks(std::mt19937* random) {
  TokenTable table = ParseRankFile(SmallRankFile({}), "ranks");
  for (int i = 0; i < 60; ++i) {
    std::string token;
    for (size_t length = 2 + (*random)() % 5; length > 0; --length) {
      token += static_cast<char>('a' + (*random)() % 3);
    }
    table.Add(token);
  }
  return table;
}

TEST(PieceMergerTest, TakesTheLeftmostOfEquals) {
  const TokenTable ranks = ParseRankFile(SmallRankFile({"aa"}), "ranks");
  EXPECT_THAT(ByScan(ranks, "aaa"), ElementsAre(256, 'a'));
  EXPECT_THAT(ByHeap(ranks, "aaa"), ElementsAre(256, 'a'));
}

TEST(PieceMergerTest, MergesTheLowestRankFirst) {
  const TokenTable ranks = ParseRankFile(SmallRankFile({"bc", "ab", "abc"}), "ranks");
  EXPECT_THAT(ByScan(ranks, "abcab"), ElementsAre(258, 257));
  EXPECT_THAT(ByHeap(ranks, "abcab"), ElementsAre(258, 257));
}

TEST(PieceMergerTest, HandlesShortPieces) {
  const TokenTable ranks = ParseRankFile(SmallRankFile({"ab"}), "ranks");
  for (const std::string_view piece : {"", "a", "ab", "ba"}) {
    EXPECT_EQ(ByScan(ranks, piece), MergeNaively(ranks, piece));
    EXPECT_EQ(ByHeap(ranks, piece), MergeNaively(ranks, piece));
  }
}

TEST(PieceMergerTest, ScanAndHeapFollowTheDefinition) {
  std::mt19937 random(1);
  for (int table = 0; table < 20; ++table) {
    const TokenTable ranks = RandomRanks(&random);
    for (int trial = 0; trial < 40; ++trial) {
      std::string piece;
      for (size_t length = random() % 60; length > 0; --length) {
        piece += static_cast<char>('a' + random() % 4);
      }
      const Ids expected = MergeNaively(ranks, piece);
      ASSERT_EQ(ByScan(ranks, piece), expected) << piece;
      ASSERT_EQ(ByHeap(ranks, piece), expected) << piece;
    }
  }
}

TEST(PieceMergerTest, ScanAndHeapAgreeOnLongPieces) {
  std::mt19937 random(2);
  const TokenTable ranks = RandomRanks(&random);
  for (const size_t length : {63u, 64u, 65u, 66u, 100u, 1000u}) {
    std::string piece;
    while (piece.size() < length) piece += static_cast<char>('a' + random() % 3);
    EXPECT_EQ(ByScan(ranks, piece), ByHeap(ranks, piece));
    Ids ids;
    PieceMerger(ranks).Merge(piece, &ids);
    EXPECT_EQ(ids, ByScan(ranks, piece));
  }
}

TEST(PieceMergerTest, ReusesItsScratch) {
  const TokenTable ranks = ParseRankFile(SmallRankFile({"ab"}), "ranks");
  PieceMerger merger(ranks);
  Ids ids;
  merger.Merge(std::string(500, 'a'), &ids);
  ids.clear();
  merger.Merge("abab", &ids);
  EXPECT_THAT(ids, ElementsAre(256, 256));
}

}  // namespace
}  // namespace thimble
