#include "base/thread_placement.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>

namespace thimble {
namespace {

// One CPU for each core, the first that is allowed.
std::vector<Cpu> OnePerCore(const std::vector<Cpu>& cpus) {
  std::set<size_t> seen;
  std::vector<Cpu> cores;
  for (const Cpu& cpu : cpus) {
    if (seen.insert(cpu.core).second) cores.push_back(cpu);
  }
  return cores;
}

// `count` of the cores: no core while a faster one is left, and those of equal speed spread evenly
// over the nodes.
std::vector<size_t> Choose(std::vector<Cpu> cores, size_t count) {
  std::ranges::stable_sort(cores, std::greater(), &Cpu::capacity);
  const uint64_t slowest = cores[count - 1].capacity;
  const auto faster = static_cast<size_t>(
      std::ranges::count_if(cores, [&](const Cpu& cpu) { return cpu.capacity > slowest; }));
  std::vector<Cpu> equal;
  for (const Cpu& cpu : cores) {
    if (cpu.capacity == slowest) equal.push_back(cpu);
  }
  std::ranges::stable_sort(equal, {}, &Cpu::node);
  std::vector<Cpu> chosen(cores.begin(), cores.begin() + static_cast<std::ptrdiff_t>(faster));
  const size_t rest = count - faster;
  for (size_t i = 0; i < rest; ++i) chosen.push_back(equal[i * equal.size() / rest]);
  // Neighbouring threads work on neighbouring rows.
  std::ranges::stable_sort(chosen, {}, &Cpu::number);
  std::ranges::stable_sort(chosen, {}, &Cpu::node);
  std::vector<size_t> numbers;
  numbers.reserve(chosen.size());
  for (const Cpu& cpu : chosen) numbers.push_back(cpu.number);
  return numbers;
}

// Empty where all that is to be had is this process's own.
std::string SharedReason(const CpuTopology& topology, size_t num_cores, size_t num_threads,
                         double load) {
  std::set<size_t> nodes;
  for (const Cpu& cpu : topology.allowed) nodes.insert(cpu.node);
  if (nodes.size() < 2) return "there is one memory node";
  if (topology.quota && *topology.quota < static_cast<double>(num_cores)) {
    return fmt::format("the control group's quota of {:.3g} CPUs is less than {} cores",
                       *topology.quota, num_cores);
  }
  if (num_threads < num_cores) {
    return fmt::format("{} threads leave some of {} cores to others", num_threads, num_cores);
  }
  if (load > static_cast<double>(num_cores) / 4) {
    return fmt::format("other processes keep {:.1f} CPUs busy", load);
  }
  return {};
}

}  // namespace

ThreadPlacement PlaceThreads(const CpuTopology& topology, size_t num_threads, Pinning pinning,
                             double load) {
  ThreadPlacement placement;
  const std::vector<Cpu> cores = OnePerCore(topology.allowed);
  if (pinning == Pinning::kOff) {
    placement.reason = "switched off";
  } else if (cores.empty()) {
    placement.reason = "the system does not say which CPUs there are";
  } else if (num_threads > cores.size()) {
    placement.reason = fmt::format("{} threads are more than {} cores", num_threads, cores.size());
  } else if (pinning == Pinning::kAuto) {
    placement.reason = SharedReason(topology, cores.size(), num_threads, load);
  }
  if (!placement.reason.empty()) return placement;
  placement.compute = Choose(cores, num_threads);
  for (const Cpu& cpu : topology.allowed) {
    if (std::ranges::count(placement.compute, cpu.number) == 0) {
      placement.reading.push_back(cpu.number);
    }
  }
  return placement;
}

AffinityScope::AffinityScope(const std::vector<size_t>& cpus) : thread_(::gettid()) {
  CPU_ZERO(&previous_);
  if (cpus.empty() || ::sched_getaffinity(thread_, sizeof(previous_), &previous_) != 0) return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const size_t cpu : cpus) CPU_SET(cpu, &mask);
  is_bound_ = ::sched_setaffinity(thread_, sizeof(mask), &mask) == 0;
}

AffinityScope::~AffinityScope() {
  if (is_bound_) ::sched_setaffinity(thread_, sizeof(previous_), &previous_);
}

bool AffinityScope::IsOfThisThread() const { return thread_ == ::gettid(); }

std::string FormatCpuList(std::vector<size_t> cpus) {
  std::ranges::sort(cpus);
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += text.empty() ? "" : ",";
    text += last == i ? fmt::format("{}", cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace thimble
