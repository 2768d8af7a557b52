#include "base/thread_placement.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "base/thread_pool.h"
#include "support/system_tree_builder.h"

namespace thimble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<size_t> UpTo(size_t count) {
  std::vector<size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0U);
  return numbers;
}

void PutCpu(SystemTreeBuilder* system, size_t cpu, size_t socket, size_t core) {
  const std::string folder = fmt::format("sys/devices/system/cpu/cpu{}/topology/", cpu);
  system->Put(folder + "physical_package_id", fmt::format("{}\n", socket));
  system->Put(folder + "core_id", fmt::format("{}\n", core));
}

// Two sockets of four cores with two threads each, as Linux numbers them: CPUs 0-3 and 8-11 on the
// first socket, 4-7 and 12-15 on the second. Core ids have gaps and repeat on the other socket.
class TwoSocketsTest : public ::testing::Test {
 protected:
  TwoSocketsTest() {
    system_.Put("sys/devices/system/cpu/online", "0-15\n");
    system_.Put("sys/devices/system/node/online", "0-1\n");
    system_.Put("sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
    system_.Put("sys/devices/system/node/node1/cpulist", "4-7,12-15\n");
    for (size_t cpu = 0; cpu < 16; ++cpu) PutCpu(&system_, cpu, cpu % 8 / 4, cpu % 4 * 2);
  }

  CpuTopology Read(const std::vector<size_t>& affinity) const {
    return ReadCpuTopology(system_.tree(), affinity);
  }
  CpuTopology Read() const { return Read(UpTo(16)); }

  SystemTreeBuilder system_;
};

TEST_F(TwoSocketsTest, TheTopologyIsCounted) {
  const CpuTopology topology = Read();
  EXPECT_EQ(topology.cpus, 16U);
  EXPECT_EQ(topology.cores, 8U);
  EXPECT_EQ(topology.sockets, 2U);
  EXPECT_EQ(topology.nodes, 2U);
  EXPECT_EQ(UsablePhysicalCores(topology), 8U);
}

TEST_F(TwoSocketsTest, EachThreadGetsACoreAndReadingThreadsTheSiblings) {
  const ThreadPlacement placement = PlaceThreads(Read(), 8, Pinning::kAuto, 0.5);
  EXPECT_EQ(placement.reason, "");
  EXPECT_EQ(placement.compute, UpTo(8));
  EXPECT_THAT(placement.reading, ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
}

TEST_F(TwoSocketsTest, OfflineCpusAreNoCores) {
  system_.Put("sys/devices/system/cpu/online", "0-1,3,5-15\n");
  const CpuTopology topology = Read();
  EXPECT_EQ(topology.affinity_cpus, 14U);
  EXPECT_EQ(topology.cores, 8U);  // their siblings are there
  EXPECT_THAT(PlaceThreads(topology, 8, Pinning::kAuto, 0).compute,
              ElementsAre(0, 1, 3, 10, 5, 6, 7, 12));
}

TEST_F(TwoSocketsTest, AMaskWithHolesIsKept) {
  const CpuTopology topology = Read({1, 3, 6, 9, 14});
  EXPECT_EQ(topology.affinity_cores, 3U);
  const ThreadPlacement placement = PlaceThreads(topology, 3, Pinning::kAuto, 0);
  EXPECT_THAT(placement.compute, ElementsAre(1, 3, 6));
  EXPECT_THAT(placement.reading, ElementsAre(9, 14));
}

TEST_F(TwoSocketsTest, FewerThreadsAreSpreadOverTheNodes) {
  EXPECT_THAT(PlaceThreads(Read(), 4, Pinning::kOn, 0).compute, ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(PlaceThreads(Read(), 1, Pinning::kOn, 0).compute, ElementsAre(0));
}

TEST_F(TwoSocketsTest, WhatIsSharedIsLeftToTheSystem) {
  const auto reason = [](const CpuTopology& topology, size_t threads, double load) {
    const ThreadPlacement placement = PlaceThreads(topology, threads, Pinning::kAuto, load);
    EXPECT_THAT(placement.compute, IsEmpty());
    EXPECT_THAT(placement.reading, IsEmpty());
    return placement.reason;
  };
  EXPECT_THAT(reason(Read(), 4, 0), HasSubstr("4 threads leave"));
  EXPECT_THAT(reason(Read(), 8, 5), HasSubstr("5.0 CPUs busy"));
  EXPECT_THAT(reason(Read(), 9, 0), HasSubstr("more than 8 cores"));
  EXPECT_THAT(reason(Read({0, 1, 2, 3}), 4, 0), HasSubstr("one memory node"));
  CpuTopology topology = Read();
  topology.quota = 6;
  EXPECT_THAT(reason(topology, 6, 0), HasSubstr("quota of 6 CPUs"));
  EXPECT_EQ(PlaceThreads(Read(), 8, Pinning::kOff, 0).reason, "switched off");
}

// Fast cores with two threads each, then slow ones with one.
TEST(HybridTest, FastCoresComeFirst) {
  SystemTreeBuilder system;
  system.Put("sys/devices/system/cpu/online", "0-7\n");
  for (size_t cpu = 0; cpu < 8; ++cpu) {
    PutCpu(&system, cpu, 0, cpu < 4 ? cpu / 2 : cpu);
    system.Put(fmt::format("sys/devices/system/cpu/cpu{}/cpufreq/cpuinfo_max_freq", cpu),
               cpu < 4 ? "5000000\n" : "3800000\n");
  }
  const CpuTopology topology = ReadCpuTopology(system.tree(), UpTo(8));
  EXPECT_EQ(topology.affinity_cores, 6U);
  EXPECT_EQ(topology.nodes, 1U);
  EXPECT_THAT(PlaceThreads(topology, 2, Pinning::kOn, 0).compute, ElementsAre(0, 2));
  EXPECT_THAT(PlaceThreads(topology, 6, Pinning::kOn, 0).compute, ElementsAre(0, 2, 4, 5, 6, 7));
  EXPECT_THAT(PlaceThreads(topology, 6, Pinning::kAuto, 0).reason, HasSubstr("one memory node"));
}

TEST(UnknownMachineTest, EachCpuIsACoreAndNothingIsBound) {
  const SystemTreeBuilder empty;
  const CpuTopology topology = ReadCpuTopology(empty.tree(), {0, 1, 5});
  EXPECT_EQ(topology.affinity_cores, 3U);
  EXPECT_THAT(PlaceThreads(topology, 3, Pinning::kAuto, 0).compute, IsEmpty());
  const CpuTopology unknown = ReadCpuTopology(empty.tree(), {});
  EXPECT_GE(UsablePhysicalCores(unknown), 1U);
  EXPECT_THAT(PlaceThreads(unknown, 1, Pinning::kOn, 0).reason, HasSubstr("does not say"));
}

TEST(FormatCpuList, JoinsNeighbours) {
  EXPECT_EQ(FormatCpuList({}), "");
  EXPECT_EQ(FormatCpuList({8, 0, 1, 2, 5}), "0-2,5,8");
}

std::set<size_t> CpusOfThisThread() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::set<size_t> cpus;
  if (::sched_getaffinity(0, sizeof(mask), &mask) != 0) return cpus;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) cpus.insert(cpu);
  }
  return cpus;
}

TEST(BoundThreadPool, EachPartRunsOnItsCpuAndTheCallerIsSetFreeAgain) {
  const std::set<size_t> before = CpusOfThisThread();
  ASSERT_FALSE(before.empty());
  const std::vector<size_t> cpus = {*before.begin(), *before.rbegin(), *before.begin()};
  std::vector<std::set<size_t>> seen(cpus.size());
  {
    ThreadPool pool(cpus.size(), cpus);
    pool.ParallelFor(cpus.size(), 1, [&](const Range& range) {
      for (size_t i = range.first; i < range.last; ++i) seen[i] = CpusOfThisThread();
    });
    EXPECT_EQ(CpusOfThisThread(), std::set<size_t>{cpus[0]});
  }
  for (size_t i = 0; i < cpus.size(); ++i) EXPECT_EQ(seen[i], std::set<size_t>{cpus[i]});
  EXPECT_EQ(CpusOfThisThread(), before);
}

}  // namespace
}  // namespace thimble
