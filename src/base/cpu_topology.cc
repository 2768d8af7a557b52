#include "base/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "base/cgroup.h"

namespace thimble {
namespace {

// The core of a CPU as "package:core", or "cpu:N" where the kernel does not say.
std::string CoreOf(size_t cpu) {
  const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
  std::string package;
  std::string core;
  std::ifstream(folder + "physical_package_id") >> package;
  std::ifstream(folder + "core_id") >> core;
  if (package.empty() || core.empty()) return "cpu:" + std::to_string(cpu);
  return package + ":" + core;
}

size_t CoresOfAffinityMask() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) {
    return std::max(1U, std::thread::hardware_concurrency());
  }
  std::set<std::string> cores;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) cores.insert(CoreOf(cpu));
  }
  return std::max<size_t>(1, cores.size());
}

}  // namespace

size_t UsablePhysicalCores() {
  const size_t cores = CoresOfAffinityMask();
  const auto quota = CgroupCpuQuota();
  if (!quota) return cores;
  return std::clamp<size_t>(static_cast<size_t>(std::ceil(*quota)), 1, cores);
}

}  // namespace thimble
