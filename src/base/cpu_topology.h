#pragma once

#include <cstddef>
#include <optional>

namespace thimble {

/// The CPUs of this machine and what this process may use of them.
struct CpuTopology {
  size_t cpus = 1;              // online; SMT siblings count each
  size_t cores = 1;             // physical, of the online CPUs
  size_t affinity_cpus = 1;     // in this process's affinity mask
  size_t affinity_cores = 1;    // physical, of those
  std::optional<double> quota;  // of the cgroup, in CPUs' worth of time
};
/// Linux; reads /sys and /proc, and counts each CPU as a core where they are absent.
CpuTopology ReadCpuTopology();

/// Physical cores that this process may use: CPUs of its affinity mask, one for each core (SMT
/// siblings share one), and no more than its cgroup's CPU quota, rounded up. At least 1.
size_t UsablePhysicalCores();

}  // namespace thimble
