#include "memory/process_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/byte_size.h"
#include "memory/buffer.h"

namespace thimble {
namespace {

// The kernel counts pages in batches for each CPU.
constexpr uint64_t kSlack = 4 * kMiB;

TEST(ReadProcessMemory, IsPlausible) {
  const ProcessMemory memory = ReadProcessMemory();
  EXPECT_GT(memory.rss_bytes, 500 * kKiB);
  EXPECT_LT(memory.rss_bytes, uint64_t{1} << 50);
  EXPECT_GE(memory.peak_rss_bytes + kSlack, memory.rss_bytes);
  EXPECT_GT(memory.minor_faults, 0U);
}

TEST(ReadProcessMemory, SeesABufferOnlyOnceItIsTouched) {
  constexpr uint64_t kBytes = 64 * kMiB;
  MemoryBudget budget(kBytes);
  const ProcessMemory before = ReadProcessMemory();
  {
    Buffer buffer(budget, "test", kBytes);
    EXPECT_LT(ReadProcessMemory().rss_bytes, before.rss_bytes + kSlack);
    std::fill_n(buffer.data(), kBytes, std::byte{1});
    const ProcessMemory touched = ReadProcessMemory();
    EXPECT_GT(touched.rss_bytes + kSlack, before.rss_bytes + kBytes);
    EXPECT_GT(touched.peak_rss_bytes + kSlack, before.rss_bytes + kBytes);
    EXPECT_GT(touched.minor_faults, before.minor_faults);
  }
  const ProcessMemory after = ReadProcessMemory();
  EXPECT_LT(after.rss_bytes, before.rss_bytes + kSlack);
  EXPECT_GT(after.peak_rss_bytes + kSlack, before.rss_bytes + kBytes);
}

TEST(AvailableMemory, IsThere) {
  EXPECT_GT(AvailableMemory(), 0U);
  EXPECT_LT(AvailableMemory(), uint64_t{1} << 50);
}

}  // namespace
}  // namespace thimble
