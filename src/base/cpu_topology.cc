#include "base/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

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

size_t CountCores(const std::vector<size_t>& cpus) {
  std::set<std::string> cores;
  for (const size_t cpu : cpus) cores.insert(CoreOf(cpu));
  return std::max<size_t>(1, cores.size());
}

// The CPUs of the affinity mask; none where the kernel does not say.
std::vector<size_t> AffinityCpus() {
  std::vector<size_t> cpus;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return cpus;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  }
  return cpus;
}

// The CPUs of a list like "0-3,8"; none where it cannot be read.
std::vector<size_t> OnlineCpus() {
  std::vector<size_t> cpus;
  std::ifstream file("/sys/devices/system/cpu/online");
  for (std::string range; std::getline(file, range, ',');) {
    std::istringstream text(range);
    size_t first = 0;
    if (!(text >> first)) continue;
    size_t last = first;
    if (text.get() == '-') text >> last;
    for (size_t cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

CpuTopology ReadCpuTopology() {
  const std::vector<size_t> online = OnlineCpus();
  const std::vector<size_t> affinity = AffinityCpus();
  CpuTopology topology;
  topology.cpus =
      online.empty() ? std::max(1U, std::thread::hardware_concurrency()) : online.size();
  topology.cores = online.empty() ? topology.cpus : CountCores(online);
  topology.affinity_cpus = affinity.empty() ? topology.cpus : affinity.size();
  topology.affinity_cores = affinity.empty() ? topology.cpus : CountCores(affinity);
  topology.quota = CgroupCpuQuota();
  return topology;
}

size_t UsablePhysicalCores() {
  const CpuTopology topology = ReadCpuTopology();
  if (!topology.quota) return topology.affinity_cores;
  return std::clamp<size_t>(static_cast<size_t>(std::ceil(*topology.quota)), 1,
                            topology.affinity_cores);
}

}  // namespace thimble
