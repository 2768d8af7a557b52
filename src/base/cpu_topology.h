#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/system_tree.h"

namespace thimble {

/// A CPU that this process may use.
struct Cpu {
  size_t number = 0;      // as the kernel counts
  size_t core = 0;        // physical; SMT siblings share one. Counted from 0 in the order of CPUs
  size_t socket = 0;      // physical_package_id
  size_t node = 0;        // of the memory that is near
  uint64_t capacity = 0;  // its speed beside the others', in units of the kernel; 0 where unknown
};

/// The CPUs of this machine and what this process may use of them.
struct CpuTopology {
  size_t cpus = 1;              // online; SMT siblings count each
  size_t cores = 1;             // physical, of the online CPUs
  size_t sockets = 1;           // of the online CPUs
  size_t nodes = 1;             // likewise
  size_t affinity_cpus = 1;     // in this process's affinity mask
  size_t affinity_cores = 1;    // physical, of those
  std::optional<double> quota;  // of the cgroup, in CPUs' worth of time
  std::vector<Cpu> allowed;     // those of the affinity mask, by number; empty where unknown
};

/// Linux; reads /sys and /proc, and counts each CPU as a core where they are absent. CPUs that are
/// offline are left out of the affinity mask.
CpuTopology ReadCpuTopology(const SystemTree& tree = {});
/// The same for a mask of `affinity`.
CpuTopology ReadCpuTopology(const SystemTree& tree, const std::vector<size_t>& affinity);

/// Physical cores that this process may use: CPUs of its affinity mask, one for each core (SMT
/// siblings share one), and no more than its cgroup's CPU quota, rounded up. At least 1.
size_t UsablePhysicalCores(const CpuTopology& topology);
size_t UsablePhysicalCores();

/// Processes that ran or waited for a CPU in the last minute, on average; 0 where unknown.
double LoadAverage(const SystemTree& tree = {});

}  // namespace thimble
