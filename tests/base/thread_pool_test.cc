#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"

namespace thimble {
namespace {

// Splits [0, count) and returns the range that each part got. Indices are counted without atomics:
// ThreadSanitizer would see two parts that share one.
std::vector<std::optional<Range>> Split(ThreadPool& pool, size_t count, size_t grain) {
  std::vector<uint32_t> visits(count);
  std::vector<std::optional<Range>> ranges(pool.num_threads());
  std::vector<uint32_t> calls(pool.num_threads());
  pool.ParallelFor(count, grain, [&](const Range& range) {
    for (size_t i = range.first; i < range.last; ++i) ++visits[i];
    ranges.at(range.part) = range;
    ++calls[range.part];
  });
  EXPECT_TRUE(std::ranges::all_of(visits, [](uint32_t n) { return n == 1; }));
  EXPECT_TRUE(std::ranges::all_of(calls, [](uint32_t n) { return n <= 1; }));
  return ranges;
}

TEST(ThreadPool, CoversEveryIndexOnceInPartsOfWholeGrains) {
  for (size_t threads = 1; threads <= 5; ++threads) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const size_t count : {0, 1, 2, 5, 16, 64, 1000, 4097}) {
      for (const size_t grain : {1, 3, 16, 64, 5000}) {
        SCOPED_TRACE(testing::Message() << threads << " threads, " << count << " by " << grain);
        size_t covered = 0;
        for (const auto& range : Split(pool, count, grain)) {
          if (!range) continue;
          EXPECT_LT(range->first, range->last);
          EXPECT_EQ(range->first % grain, 0U);
          EXPECT_TRUE(range->last == count || range->last % grain == 0);
          covered += range->last - range->first;
        }
        EXPECT_EQ(covered, count);
      }
    }
  }
}

TEST(ThreadPool, RunsASingleGrainOnTheCallersThread) {
  ThreadPool pool(4);
  size_t calls = 0;
  std::thread::id thread;
  pool.ParallelFor(64, 64, [&](const Range& range) {
    ++calls;
    thread = std::this_thread::get_id();
    EXPECT_EQ(range.first, 0U);
    EXPECT_EQ(range.last, 64U);
    EXPECT_EQ(range.part, 0U);
  });
  EXPECT_EQ(calls, 1U);
  EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST(ThreadPool, SplitsTheSameWayEveryTime) {
  ThreadPool pool(3);
  const auto first = Split(pool, 1000, 8);
  for (int i = 0; i < 20; ++i) {
    const auto again = Split(pool, 1000, 8);
    for (size_t part = 0; part < 3; ++part) {
      ASSERT_EQ(first[part].has_value(), again[part].has_value());
      if (!first[part]) continue;
      EXPECT_EQ(first[part]->first, again[part]->first);
      EXPECT_EQ(first[part]->last, again[part]->last);
    }
  }
}

TEST(ThreadPool, IsReusableManyTimes) {
  ThreadPool pool(2);
  std::vector<uint64_t> sums(64);
  constexpr uint64_t kRounds = 1000;
  for (uint64_t round = 0; round < kRounds; ++round) {
    pool.ParallelFor(sums.size(), 1, [&](const Range& range) {
      for (size_t i = range.first; i < range.last; ++i) sums[i] += round;
    });
    ASSERT_EQ(sums[round % sums.size()], round * (round + 1) / 2);
  }
}

TEST(ThreadPool, ShowsTheCallerWhatTheWorkersWrote) {
  ThreadPool pool(4);
  for (int round = 0; round < 100; ++round) {
    std::vector<int> values(400, -1);
    pool.ParallelFor(values.size(), 1, [&](const Range& range) {
      for (size_t i = range.first; i < range.last; ++i) values[i] = round;
    });
    ASSERT_EQ(std::ranges::count(values, round), 400);
  }
}

TEST(ThreadPool, EndsWhileIdleOrUnused) {
  for (size_t threads = 1; threads <= 4; ++threads) {
    { const ThreadPool unused(threads); }
    ThreadPool used(threads);
    Split(used, 100, 1);
  }
}

TEST(ThreadPool, NeedsAThread) { EXPECT_THROW(ThreadPool(0), Error); }

}  // namespace
}  // namespace thimble
