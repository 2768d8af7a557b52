#include "base/cpu_topology.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstddef>

namespace thimble {
namespace {

// Restores the affinity of the calling thread at the end of its scope.
class AffinityScope {
 public:
  AffinityScope() { valid_ = sched_getaffinity(0, sizeof(mask_), &mask_) == 0; }
  ~AffinityScope() {
    if (valid_) sched_setaffinity(0, sizeof(mask_), &mask_);
  }
  bool valid() const { return valid_; }
  size_t num_cpus() const { return static_cast<size_t>(CPU_COUNT(&mask_)); }

  bool RestrictTo(size_t nth) const {
    for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &mask_) || nth-- > 0) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      return sched_setaffinity(0, sizeof(one), &one) == 0;
    }
    return false;
  }

 private:
  cpu_set_t mask_;
  bool valid_ = false;
};

TEST(UsablePhysicalCores, IsWithinTheAffinityMask) {
  const AffinityScope scope;
  ASSERT_TRUE(scope.valid());
  EXPECT_GE(UsablePhysicalCores(), 1U);
  EXPECT_LE(UsablePhysicalCores(), scope.num_cpus());
}

TEST(UsablePhysicalCores, IsOneOnAnySingleCpu) {
  const AffinityScope scope;
  ASSERT_TRUE(scope.valid());
  for (size_t nth = 0; nth < scope.num_cpus(); ++nth) {
    if (!scope.RestrictTo(nth)) GTEST_SKIP() << "the system does not let the affinity be changed";
    EXPECT_EQ(UsablePhysicalCores(), 1U);
  }
}

TEST(CpuTopologyTest, CountsAreConsistent) {
  const CpuTopology topology = ReadCpuTopology();
  EXPECT_GE(topology.cores, 1U);
  EXPECT_LE(topology.cores, topology.cpus);
  EXPECT_LE(topology.affinity_cores, topology.affinity_cpus);
  EXPECT_LE(UsablePhysicalCores(), topology.affinity_cores);
  if (topology.quota) {
    EXPECT_GT(*topology.quota, 0);
  }
}

}  // namespace
}  // namespace thimble
