#include "base/checked_math.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace thimble {
namespace {

constexpr uint64_t kMax64 = std::numeric_limits<uint64_t>::max();

TEST(CheckedMul, IsExactOrNothing) {
  EXPECT_EQ(CheckedMul<uint64_t>(6, 7), 42U);
  EXPECT_EQ(CheckedMul<uint64_t>(kMax64, 0), 0U);
  EXPECT_EQ(CheckedMul<uint64_t>(kMax64, 1), kMax64);
  EXPECT_EQ(CheckedMul<uint64_t>(uint64_t{1} << 32, (uint64_t{1} << 32) - 1), kMax64 - 0xFFFFFFFFU);
  EXPECT_EQ(CheckedMul<uint64_t>(uint64_t{1} << 32, uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(CheckedMul<uint64_t>(kMax64, 2), std::nullopt);
  EXPECT_EQ(CheckedMul<int32_t>(-46341, 46341), std::nullopt);
  EXPECT_EQ(CheckedMul<int32_t>(std::numeric_limits<int32_t>::min(), -1), std::nullopt);
}

TEST(CheckedAdd, IsExactOrNothing) {
  EXPECT_EQ(CheckedAdd<uint64_t>(40, 2), 42U);
  EXPECT_EQ(CheckedAdd<uint64_t>(kMax64, 0), kMax64);
  EXPECT_EQ(CheckedAdd<uint64_t>(kMax64, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd<uint64_t>(kMax64 / 2 + 1, kMax64 / 2 + 1), std::nullopt);
  EXPECT_EQ(CheckedAdd<int8_t>(100, 28), std::nullopt);
}

TEST(RoundUp, GivesTheLeastMultipleThatIsEnough) {
  for (uint64_t unit = 1; unit < 20; ++unit) {
    for (uint64_t value = 0; value < 100; ++value) {
      const uint64_t rounded = RoundUp(value, unit);
      EXPECT_EQ(rounded % unit, 0U);
      EXPECT_GE(rounded, value);
      EXPECT_LT(rounded, value + unit);
      EXPECT_EQ(CeilDiv(value, unit), rounded / unit);
    }
  }
  EXPECT_EQ(RoundUp<uint64_t>(4096, 4096), 4096U);
  EXPECT_EQ(RoundUp<uint64_t>(4097, 4096), 8192U);
}

}  // namespace
}  // namespace thimble
