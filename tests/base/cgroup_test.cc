#include "base/cgroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/byte_size.h"
#include "support/system_tree_builder.h"

namespace thimble {
namespace {

using ::testing::EndsWith;

constexpr char kNested[] = "0::/outer/inner\n";
// Version 1 beside an empty version 2, as with hybrid set-ups.
constexpr char kVersion1[] = "4:memory:/box\n3:cpu,cpuacct:/box\n2:pids:/box\n0::/\n";
constexpr char kVersion1Unlimited[] = "9223372036854771712\n";

TEST(CgroupTest, NothingIsLimitedWhereNothingCanBeRead) {
  const SystemTreeBuilder empty;
  EXPECT_FALSE(CgroupCpuQuota(empty.tree()).has_value());
  EXPECT_FALSE(CgroupTaskLimit(empty.tree()).has_value());
  EXPECT_FALSE(CgroupMemoryLimit(empty.tree()).has_value());
  EXPECT_FALSE(CgroupMemoryAvailable(empty.tree()).has_value());
  EXPECT_FALSE(TightestMemoryGroup(0, empty.tree()).has_value());
}

TEST(CgroupTest, NoLimitIsNoLimit) {
  SystemTreeBuilder system;
  system.Put("proc/self/cgroup", kNested).Put("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  system.Put("sys/fs/cgroup/outer/inner/memory.high", "max\n");
  system.Put("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  EXPECT_FALSE(CgroupMemoryLimit(system.tree()).has_value());
  EXPECT_FALSE(CgroupCpuQuota(system.tree()).has_value());
  system.Put("proc/self/cgroup", kVersion1);
  system.Put("sys/fs/cgroup/memory/box/memory.limit_in_bytes", kVersion1Unlimited);
  EXPECT_FALSE(CgroupMemoryLimit(system.tree()).has_value());
}

TEST(CgroupTest, TheTightestOfNestedGroupsCounts) {
  SystemTreeBuilder system;
  system.Put("proc/self/cgroup", kNested);
  system.Put("sys/fs/cgroup/outer/memory.max", "300000000\n");
  system.Put("sys/fs/cgroup/outer/memory.current", "100000000\n");
  system.Put("sys/fs/cgroup/outer/inner/memory.max", "500000000\n");
  system.Put("sys/fs/cgroup/outer/inner/memory.current", "50000000\n");
  system.Put("sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
  system.Put("sys/fs/cgroup/outer/inner/cpu.max", "400000 100000\n");
  system.Put("sys/fs/cgroup/outer/pids.max", "50\n");
  system.Put("sys/fs/cgroup/outer/inner/pids.max", "max\n");
  EXPECT_EQ(CgroupMemoryLimit(system.tree()), 300'000'000U);
  EXPECT_EQ(CgroupMemoryAvailable(system.tree()), 200'000'000U);
  EXPECT_EQ(CgroupCpuQuota(system.tree()), 1.5);
  EXPECT_EQ(CgroupTaskLimit(system.tree()), 50U);
  const auto memory = TightestMemoryGroup(20'000'000, system.tree());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->limit_bytes, 300'000'000U);
  EXPECT_EQ(memory->RoomBytes(20'000'000), 220'000'000U);
  EXPECT_THAT(memory->setting, EndsWith("/sys/fs/cgroup/outer/memory.max"));
}

TEST(CgroupTest, ASlowerGroupIsALimitToo) {
  SystemTreeBuilder system;
  system.Put("proc/self/cgroup", kNested);
  system.Put("sys/fs/cgroup/outer/inner/memory.max", "500000000\n");
  system.Put("sys/fs/cgroup/outer/inner/memory.high", "400000000\n");
  EXPECT_EQ(CgroupMemoryLimit(system.tree()), 400'000'000U);
  EXPECT_THAT(TightestMemoryGroup(0, system.tree())->setting, EndsWith("memory.high"));
}

TEST(CgroupTest, PageCacheCanBeDropped) {
  SystemTreeBuilder system;
  system.Put("proc/self/cgroup", kNested);
  system.Put("sys/fs/cgroup/outer/inner/memory.max", "1000\n");
  system.Put("sys/fs/cgroup/outer/inner/memory.current", "900\n");
  system.Put("sys/fs/cgroup/outer/inner/memory.stat",
             "anon 300\ninactive_file 400\nactive_file 100\nslab_reclaimable 50\n");
  EXPECT_EQ(CgroupMemoryAvailable(system.tree()), 500U);  // what was not used for long, alone
  const auto memory = TightestMemoryGroup(200, system.tree());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->held_bytes, 350U);
  EXPECT_EQ(memory->RoomBytes(200), 850U);
  EXPECT_EQ(memory->RoomBytes(9000), 1000U);  // a process may be larger than its group's figure
}

TEST(CgroupTest, AGroupThatIsFullHasNoRoom) {
  SystemTreeBuilder system;
  system.Put("proc/self/cgroup", kNested);
  system.Put("sys/fs/cgroup/outer/inner/memory.max", "1000\n");
  system.Put("sys/fs/cgroup/outer/inner/memory.current", "4000\n");
  EXPECT_EQ(CgroupMemoryAvailable(system.tree()), 0U);
  EXPECT_EQ(TightestMemoryGroup(0, system.tree())->RoomBytes(0), 0U);
}

TEST(CgroupTest, VersionOneIsReadBesideVersionTwo) {
  SystemTreeBuilder system;
  system.Put("proc/self/cgroup", kVersion1);
  system.Put("sys/fs/cgroup/unified/cgroup.procs", "1\n");
  system.Put("sys/fs/cgroup/memory/memory.limit_in_bytes", kVersion1Unlimited);
  system.Put("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "314572800\n");
  system.Put("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "104857600\n");
  system.Put("sys/fs/cgroup/memory/box/memory.stat", "total_inactive_file 4857600\n");
  system.Put("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "50000\n");
  system.Put("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  system.Put("sys/fs/cgroup/pids/box/pids.max", "20\n");
  EXPECT_EQ(CgroupMemoryLimit(system.tree()), 314'572'800U);
  EXPECT_EQ(CgroupMemoryAvailable(system.tree()), 214'572'800U);
  EXPECT_EQ(CgroupCpuQuota(system.tree()), 0.5);
  EXPECT_EQ(CgroupTaskLimit(system.tree()), 20U);
}

TEST(CgroupTest, WithoutProcTheRootOfTheMountStandsIn) {
  SystemTreeBuilder system;
  system.Put("sys/fs/cgroup/memory.max", "300000000\n");
  EXPECT_EQ(CgroupMemoryLimit(system.tree()), 300'000'000U);
}

// The path is the host's, and the mount shows the container's own group as its root.
TEST(CgroupTest, InsideAContainerTheMountItselfIsTheGroup) {
  SystemTreeBuilder system;
  system.Put("proc/self/cgroup", "0::/system.slice/docker-1234.scope\n");
  system.Put("sys/fs/cgroup/memory.max", "300000000\n");
  EXPECT_EQ(CgroupMemoryLimit(system.tree()), 300'000'000U);
}

}  // namespace
}  // namespace thimble
