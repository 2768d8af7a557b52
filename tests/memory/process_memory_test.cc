#include "memory/process_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/byte_size.h"
#include "memory/buffer.h"
#include "support/system_tree_builder.h"

namespace thimble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

TEST(MemoryOfATree, IsWhatItsFilesSay) {
  SystemTreeBuilder system;
  system.Put("proc/meminfo", "MemTotal:  1000000 kB\nMemFree: 1 kB\nMemAvailable:  600000 kB\n");
  system.Put("proc/self/status",
             "Name:\tx\nVmHWM:\t  90000 kB\nVmRSS:\t  50000 kB\nVmPTE:\t 4 kB\n");
  EXPECT_EQ(TotalMemory(system.tree()), 1'000'000 * kKiB);
  EXPECT_EQ(AvailableMemory(system.tree()), 600'000 * kKiB);
  const ProcessMemory memory = ReadProcessMemory(system.tree());
  EXPECT_EQ(memory.rss_bytes, 50'000 * kKiB);
  EXPECT_EQ(memory.peak_rss_bytes, 90'000 * kKiB);
  EXPECT_EQ(memory.page_table_bytes, 4 * kKiB);
}

TEST(MemoryOfATree, IsAskedOfTheSystemWithoutProc) {
  const SystemTreeBuilder empty;
  EXPECT_GT(TotalMemory(empty.tree()), 100 * kMiB);
  EXPECT_GT(AvailableMemory(empty.tree()), 0U);
  EXPECT_LE(AvailableMemory(empty.tree()), TotalMemory(empty.tree()));
  const ProcessMemory memory = ReadProcessMemory(empty.tree());
  EXPECT_GT(memory.rss_bytes, 500 * kKiB);
  EXPECT_EQ(memory.rss_bytes, memory.peak_rss_bytes);
  EXPECT_GT(ReadMemoryCeiling(empty.tree()).bytes, 0U);
}

TEST(GrantMemory, GivesWhatTheControlGroupAllows) {
  SystemTreeBuilder system;
  system.Put("proc/meminfo", "MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\n");
  system.Put("proc/self/status", "VmRSS: 10000 kB\n");
  system.Put("proc/self/cgroup", "0::/box\n");
  system.Put("sys/fs/cgroup/box/memory.max", "300000000\n");
  system.Put("sys/fs/cgroup/box/memory.current", "10240000\n");
  const MemoryCeiling ceiling = ReadMemoryCeiling(system.tree());
  EXPECT_LT(ceiling.bytes, 300'000'000U);
  EXPECT_GT(ceiling.bytes, 270'000'000U);
  const MemoryGrant all = GrantMemory(200'000'000, ceiling);
  EXPECT_EQ(all.bytes, 200'000'000U);
  EXPECT_EQ(all.warning, "");
  const MemoryGrant less = GrantMemory(2'000'000'000, ceiling);
  EXPECT_EQ(less.bytes, ceiling.bytes);
  EXPECT_THAT(less.warning,
              AllOf(HasSubstr("2.00 GB"), HasSubstr("the control group allows 300 MB"),
                    HasSubstr("box/memory.max")));
}

TEST(GrantMemory, LeavesWhatOthersOfTheGroupHold) {
  SystemTreeBuilder system;
  system.Put("proc/meminfo", "MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\n");
  system.Put("proc/self/status", "VmRSS: 10000 kB\n");
  system.Put("proc/self/cgroup", "0::/box\n");
  system.Put("sys/fs/cgroup/box/memory.max", "300000000\n");
  system.Put("sys/fs/cgroup/box/memory.current", "110240000\n");
  const MemoryGrant grant = GrantMemory(250'000'000, ReadMemoryCeiling(system.tree()));
  EXPECT_LT(grant.bytes, 200'000'000U);
  EXPECT_THAT(grant.warning, HasSubstr("other processes hold 100 MB"));
}

TEST(GrantMemory, GivesWhatTheMachineHas) {
  SystemTreeBuilder system;
  system.Put("proc/meminfo", "MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n");
  system.Put("proc/self/status", "VmRSS: 10000 kB\n");
  const MemoryGrant grant = GrantMemory(8'000'000'000, ReadMemoryCeiling(system.tree()));
  EXPECT_LT(grant.bytes, 3'010'000 * kKiB);
  EXPECT_GT(grant.bytes, 2'800'000 * kKiB);
  EXPECT_THAT(grant.warning, HasSubstr("the machine has 4.10 GB"));
}

}  // namespace
}  // namespace thimble
