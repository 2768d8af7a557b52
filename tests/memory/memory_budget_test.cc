#include "memory/memory_budget.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "base/byte_size.h"
#include "support/expect_error.h"

namespace thimble {
namespace {

using Lines = std::map<std::string, uint64_t>;

TEST(MemoryBudget, CountsToTheByte) {
  MemoryBudget budget(1000);
  EXPECT_EQ(budget.limit_bytes(), 1000U);
  {
    const Reservation first = budget.Reserve("ring", 300);
    const Reservation second = budget.Reserve("ring", 200);
    EXPECT_EQ(first.bytes(), 300U);
    EXPECT_EQ(budget.used_bytes(), 500U);
    const Reservation third = budget.Reserve("state", 500);
    EXPECT_EQ(budget.used_bytes(), 1000U);
    EXPECT_EQ(budget.Ledger(), (Lines{{"ring", 500}, {"state", 500}}));
  }
  EXPECT_EQ(budget.used_bytes(), 0U);
  EXPECT_EQ(budget.Ledger(), Lines());
}

TEST(MemoryBudget, RefusesOneByteTooMuchAndTakesNothing) {
  MemoryBudget budget(10 * kMB);
  const Reservation held = budget.Reserve("expert slots", 7 * kMB);
  ExpectError(ErrorCode::kOverBudget,
              {"10.0 MB", "3.00 MB of trunk ring", "7.00 MB  expert slots", "in all", "--memory"},
              [&] { budget.Reserve("trunk ring", 3 * kMB + 1); });
  EXPECT_EQ(budget.used_bytes(), 7 * kMB);
  EXPECT_EQ(budget.Ledger(), (Lines{{"expert slots", 7 * kMB}}));
  const Reservation rest = budget.Reserve("trunk ring", 3 * kMB);
  EXPECT_EQ(budget.used_bytes(), budget.limit_bytes());
}

TEST(MemoryBudget, IsNotFooledByHugeRequests) {
  MemoryBudget budget(1000);
  const Reservation held = budget.Reserve("a", 1);
  EXPECT_THROW(budget.Reserve("b", UINT64_MAX), Error);
  EXPECT_THROW(budget.Reserve("b", UINT64_MAX - 1), Error);
  EXPECT_EQ(budget.used_bytes(), 1U);
}

TEST(MemoryBudget, LeavesEmptyLinesOut) {
  MemoryBudget budget(1000);
  {
    const Reservation first = budget.Reserve("empty", 0);
    const Reservation second = budget.Reserve("empty", 0);
    EXPECT_EQ(budget.Ledger(), Lines());
    const Reservation third = budget.Reserve("empty", 5);
    EXPECT_EQ(budget.Ledger(), (Lines{{"empty", 5}}));
  }
  EXPECT_EQ(budget.Ledger(), Lines());
  EXPECT_EQ(budget.used_bytes(), 0U);
}

TEST(MemoryBudget, CountsFromManyThreads) {
  MemoryBudget budget(uint64_t{1} << 40);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&budget, t] {
      for (uint64_t i = 0; i < 200; ++i) {
        const Reservation held = budget.Reserve("line " + std::to_string(t % 2), i);
        EXPECT_GE(budget.used_bytes(), i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.used_bytes(), 0U);
  EXPECT_EQ(budget.Ledger(), Lines());
}

TEST(Reservation, IsReturnedOnceHoweverOftenItMoves) {
  MemoryBudget budget(1000);
  {
    Reservation first = budget.Reserve("a", 100);
    Reservation second = std::move(first);
    EXPECT_EQ(second.bytes(), 100U);
    Reservation third;
    third = std::move(second);
    EXPECT_EQ(third.bytes(), 100U);
    EXPECT_EQ(budget.used_bytes(), 100U);
  }
  EXPECT_EQ(budget.used_bytes(), 0U);
}

TEST(Reservation, IsReturnedWhenAnotherTakesItsPlace) {
  MemoryBudget budget(1000);
  Reservation held = budget.Reserve("a", 100);
  held = budget.Reserve("b", 30);
  EXPECT_EQ(budget.used_bytes(), 30U);
  EXPECT_EQ(budget.Ledger(), (Lines{{"b", 30}}));
  held = Reservation();
  EXPECT_EQ(budget.used_bytes(), 0U);
}

TEST(FormatLedger, ListsTheLargestFirstAndTheSum) {
  EXPECT_EQ(FormatLedger({{"small", 2000}, {"large", 1'500'000'000}, {"medium", 17'500'000}}),
            "    1.50 GB  large\n"
            "    17.5 MB  medium\n"
            "    2.00 kB  small\n"
            "    1.52 GB  in all\n");
  EXPECT_EQ(FormatLedger({}), "        0 B  in all\n");
}

}  // namespace
}  // namespace thimble
