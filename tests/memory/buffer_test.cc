#include "memory/buffer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <span>
#include <utility>

#include "base/byte_size.h"
#include "support/expect_error.h"

namespace thimble {
namespace {

bool AllZero(const Buffer& buffer) {
  const std::span bytes(buffer.data(), buffer.bytes());
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

TEST(Buffer, IsZeroedPageAlignedAndCharged) {
  MemoryBudget budget(1 << 20);
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const uint64_t bytes : {1, 4096, 5000, 300'000}) {
    Buffer buffer(budget, "test", bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % page, 0U);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(budget.used_bytes(), bytes);
    EXPECT_TRUE(AllZero(buffer));
    std::fill_n(buffer.data(), bytes, std::byte{0xff});
  }
  EXPECT_EQ(budget.used_bytes(), 0U);
}

TEST(Buffer, RefusesBeforeItAllocates) {
  MemoryBudget budget(uint64_t{1} << 20);
  // The kernel would refuse this size with another code.
  ExpectError(ErrorCode::kOverBudget, {"trunk ring"},
              [&] { Buffer(budget, "trunk ring", uint64_t{1} << 62); });
  EXPECT_EQ(budget.used_bytes(), 0U);
}

TEST(Buffer, ReturnsItsChargeWhereTheKernelRefuses) {
  MemoryBudget budget(UINT64_MAX);
  ExpectError(ErrorCode::kRuntime, {"refused", "trunk ring"},
              [&] { Buffer(budget, "trunk ring", uint64_t{1} << 62); });
  EXPECT_EQ(budget.used_bytes(), 0U);
}

TEST(Buffer, MovesItsMemoryAndItsCharge) {
  MemoryBudget budget(1 << 20);
  {
    Buffer first(budget, "a", 10'000);
    std::byte* data = first.data();
    Buffer second = std::move(first);
    EXPECT_EQ(second.data(), data);
    EXPECT_EQ(second.bytes(), 10'000U);
    second = Buffer(budget, "b", 20'000);
    EXPECT_EQ(budget.used_bytes(), 20'000U);
    EXPECT_EQ(second.bytes(), 20'000U);
    second = Buffer();
    EXPECT_EQ(second.data(), nullptr);
    EXPECT_EQ(budget.used_bytes(), 0U);
  }
  EXPECT_EQ(budget.used_bytes(), 0U);
}

TEST(Buffer, MayBeEmpty) {
  MemoryBudget budget(0);
  const Buffer buffer(budget, "nothing", 0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.bytes(), 0U);
}

struct Layout {
  float* floats;
  uint8_t* bytes;
  double* late;
  uint64_t shared_from;
  float* one_use;
  float* other_use;

  explicit Layout(Carver& carver)
      : floats(carver.Take<float>(33)),
        bytes(carver.Take<uint8_t>(1)),
        late(carver.Take<double>(7)),
        shared_from(carver.position()),
        one_use(carver.Restart(shared_from).Take<float>(100)),
        other_use(carver.Restart(shared_from).Take<float>(10)) {}
};

TEST(Carver, NeedsWhatItCounted) {
  Carver counter;
  const Layout counted(counter);
  EXPECT_EQ(counted.floats, nullptr);
  EXPECT_EQ(counter.used_bytes(), 192U + 64U + 64U + 448U);

  MemoryBudget budget(1 << 20);
  Buffer exact(budget, "exact", counter.used_bytes());
  Carver carver(exact);
  const Layout layout(carver);
  EXPECT_EQ(carver.used_bytes(), counter.used_bytes());
  EXPECT_EQ(carver.position(), counter.position());

  Buffer small(budget, "small", counter.used_bytes() - 1);
  ExpectError(ErrorCode::kRuntime, {"internal error"}, [&] {
    Carver short_carver(small);
    const Layout too_large(short_carver);
  });
}

TEST(Carver, PlacesPartsApartAndOnCacheLines) {
  MemoryBudget budget(1 << 20);
  Buffer buffer(budget, "test", 4096);
  Carver carver(buffer);
  const Layout layout(carver);
  const auto offset = [&](const void* part) {
    return static_cast<uint64_t>(static_cast<const std::byte*>(part) - buffer.data());
  };
  EXPECT_EQ(offset(layout.floats), 0U);
  EXPECT_EQ(offset(layout.bytes), 192U);
  EXPECT_EQ(offset(layout.late), 256U);
}

TEST(Carver, SharesMemoryAfterRestart) {
  MemoryBudget budget(1 << 20);
  Buffer buffer(budget, "test", 4096);
  Carver carver(buffer);
  const Layout layout(carver);
  EXPECT_EQ(layout.one_use, layout.other_use);
  // What all need together is the longer of the two, though the shorter came last.
  EXPECT_EQ(carver.used_bytes(), 320U + 448U);
  EXPECT_EQ(carver.position(), 320U + 64U);
}

TEST(Carver, CatchesAnOverrunAfterRestartToo) {
  MemoryBudget budget(1 << 20);
  Buffer buffer(budget, "test", 4096);
  Carver carver(buffer);
  carver.Take<uint8_t>(4000);
  carver.Restart(64).Take<uint8_t>(4032);
  EXPECT_THROW(carver.Restart(64).Take<uint8_t>(4033), Error);
}

TEST(Buffer, IsLockedAsItIsTouchedOrSaysWhyNot) {
  MemoryBudget budget(16 * kMiB);
  Buffer buffer(budget, "test", 8 * kMiB);
  const int error = buffer.TryLock();
  EXPECT_TRUE(error == 0 || error == ENOMEM || error == EPERM) << error;
  buffer.data()[5 * kMiB] = std::byte{1};
  EXPECT_EQ(buffer.data()[5 * kMiB], std::byte{1});
  EXPECT_EQ(Buffer().TryLock(), 0);
}

}  // namespace
}  // namespace thimble
