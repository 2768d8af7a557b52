#include "base/cpu_topology.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "base/cgroup.h"

namespace thimble {
namespace {

constexpr char kCpuFolder[] = "sys/devices/system/cpu";

// The numbers of a list like "0-3,8"; none where it cannot be read.
std::vector<size_t> ReadList(const std::filesystem::path& path) {
  std::vector<size_t> numbers;
  std::ifstream file(path);
  for (std::string range; std::getline(file, range, ',');) {
    std::istringstream text(range);
    size_t first = 0;
    if (!(text >> first)) continue;
    size_t last = first;
    if (text.get() == '-') text >> last;
    for (size_t number = first; number <= last && number < CPU_SETSIZE; ++number) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

// Nothing where the file is missing or holds a negative number: the kernel does not know.
std::optional<size_t> ReadCount(const std::filesystem::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (!(file >> number) || number < 0) return std::nullopt;
  return static_cast<size_t>(number);
}

// The node of each CPU, for those that have one.
std::map<size_t, size_t> NodesOfCpus(const SystemTree& tree) {
  const auto folder = tree.At("sys/devices/system/node");
  std::map<size_t, size_t> nodes;
  for (const size_t node : ReadList(folder / "online")) {
    for (const size_t cpu : ReadList(folder / fmt::format("node{}", node) / "cpulist")) {
      nodes[cpu] = node;
    }
  }
  return nodes;
}

// How fast a CPU is: as the kernel rates it on ARM, by its highest clock elsewhere.
uint64_t CapacityOf(const std::filesystem::path& cpu_folder) {
  if (const auto capacity = ReadCount(cpu_folder / "cpu_capacity")) return *capacity;
  return ReadCount(cpu_folder / "cpufreq/cpuinfo_max_freq").value_or(0);
}

std::vector<Cpu> Describe(const SystemTree& tree, const std::vector<size_t>& numbers) {
  const std::map<size_t, size_t> nodes = NodesOfCpus(tree);
  // (socket, core_id): core_id counts within a socket, and may have gaps. A CPU of which the kernel
  // says nothing is a core of its own.
  std::map<std::pair<int64_t, size_t>, size_t> cores;
  std::vector<Cpu> cpus;
  for (const size_t number : numbers) {
    const auto folder = tree.At(kCpuFolder) / fmt::format("cpu{}", number);
    const auto socket = ReadCount(folder / "topology/physical_package_id");
    const auto core = ReadCount(folder / "topology/core_id");
    const std::pair<int64_t, size_t> key =
        core ? std::pair(static_cast<int64_t>(socket.value_or(0)), *core)
             : std::pair(int64_t{-1}, number);
    const auto node = nodes.find(number);
    cpus.push_back({.number = number,
                    .core = cores.emplace(key, cores.size()).first->second,
                    .socket = socket.value_or(0),
                    .node = node == nodes.end() ? 0 : node->second,
                    .capacity = CapacityOf(folder)});
  }
  return cpus;
}

template <typename Key>
size_t CountDifferent(const std::vector<Cpu>& cpus, Key key) {
  std::set<size_t> values;
  for (const Cpu& cpu : cpus) values.insert(cpu.*key);
  return std::max<size_t>(1, values.size());
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

}  // namespace

CpuTopology ReadCpuTopology(const SystemTree& tree, const std::vector<size_t>& affinity) {
  std::vector<size_t> online = ReadList(tree.At(kCpuFolder) / "online");
  CpuTopology topology;
  topology.quota = CgroupCpuQuota(tree);
  std::vector<size_t> usable = affinity;
  if (!online.empty()) {
    std::erase_if(usable, [&](size_t cpu) { return std::ranges::count(online, cpu) == 0; });
  } else {
    topology.cpus = std::max(1U, std::thread::hardware_concurrency());
    topology.cores = topology.cpus;
    online = affinity;
  }
  topology.allowed = Describe(tree, usable);
  const std::vector<Cpu> all = Describe(tree, online);
  if (!all.empty()) {
    topology.cpus = std::max(topology.cpus, all.size());
    topology.cores = std::max(topology.cores, CountDifferent(all, &Cpu::core));
    topology.sockets = CountDifferent(all, &Cpu::socket);
    topology.nodes = CountDifferent(all, &Cpu::node);
  }
  const bool known = !topology.allowed.empty();
  topology.affinity_cpus = known ? topology.allowed.size() : topology.cpus;
  topology.affinity_cores = known ? CountDifferent(topology.allowed, &Cpu::core) : topology.cores;
  return topology;
}

CpuTopology ReadCpuTopology(const SystemTree& tree) {
  return ReadCpuTopology(tree, AffinityCpus());
}

size_t UsablePhysicalCores(const CpuTopology& topology) {
  if (!topology.quota) return topology.affinity_cores;
  return std::clamp<size_t>(static_cast<size_t>(std::ceil(*topology.quota)), 1,
                            topology.affinity_cores);
}

size_t UsablePhysicalCores() { return UsablePhysicalCores(ReadCpuTopology()); }

double LoadAverage(const SystemTree& tree) {
  double load = 0;
  std::ifstream file(tree.At("proc/loadavg"));
  return file >> load ? load : 0;
}

}  // namespace thimble
