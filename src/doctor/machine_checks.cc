#include "doctor/machine_checks.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/byte_size.h"
#include "base/cpu_topology.h"
#include "engine/engine.h"

namespace thimble {
namespace {

// The least that the exact Kimi K3 runs in, about.
constexpr uint64_t kLittleMemory = 1'500 * kMB;

void CheckCpu(const MachineFacts& facts, HealthReport* report) {
  const std::string simd = BestKernels().simd;
  const std::string cpu = facts.cpu.empty() ? "unknown" : facts.cpu;
  const bool fast = simd.starts_with("AVX2") || simd.starts_with("AVX3");
  report
      ->Add("cpu", fast ? Verdict::kOk : Verdict::kWarn,
            fmt::format("{}, kernels for {}", cpu, simd),
            fast ? ""
                 : "it runs, slowly: AVX2 or AVX-512 would help; in a virtual machine, let "
                   "the guest see the host's CPU")
      .figures = {{"cpu", cpu}, {"simd", simd}};
}

void CheckCores(HealthReport* report) {
  const CpuTopology topology = ReadCpuTopology();
  const size_t usable = UsablePhysicalCores();
  std::string found = fmt::format("{} usable of {} physical ({} CPUs, {} in the affinity mask",
                                  usable, topology.cores, topology.cpus, topology.affinity_cpus);
  found += topology.quota ? fmt::format(", cgroup quota of {:.3g} CPUs)", *topology.quota)
                          : ", no cgroup quota)";
  const bool fewer = usable < topology.cores;
  HealthCheck& check = report->Add(
      "cores", fewer ? Verdict::kWarn : Verdict::kOk, std::move(found),
      fewer ? "raise the container's CPU limit or the affinity mask to use them all" : "");
  check.figures = {{"usable", usable},
                   {"physical", topology.cores},
                   {"cpus", topology.cpus},
                   {"affinity_cpus", topology.affinity_cpus},
                   {"quota", nullptr}};
  if (topology.quota) check.figures["quota"] = *topology.quota;
}

void CheckMemory(const MachineFacts& facts, HealthReport* report) {
  std::string found = fmt::format("{} available of {}", FormatBytes(facts.available_bytes),
                                  FormatBytes(facts.memory_bytes));
  found += facts.cgroup_limit_bytes
               ? fmt::format(", cgroup limit {}", FormatBytes(*facts.cgroup_limit_bytes))
               : ", no cgroup limit";
  const bool little = facts.available_bytes < kLittleMemory;
  HealthCheck& check = report->Add(
      "memory", little ? Verdict::kWarn : Verdict::kOk, std::move(found),
      little ? "large models want 1.5 GB at least: close programs or raise the limit" : "");
  check.figures = {{"total_bytes", facts.memory_bytes},
                   {"available_bytes", facts.available_bytes},
                   {"cgroup_limit_bytes", nullptr}};
  if (facts.cgroup_limit_bytes) check.figures["cgroup_limit_bytes"] = *facts.cgroup_limit_bytes;
}

void CheckSwap(const MachineFacts& facts, HealthReport* report) {
  const bool enabled = facts.swap_bytes > 0;
  report
      ->Add("swap", enabled ? Verdict::kWarn : Verdict::kOk,
            enabled ? fmt::format("{} enabled, {} used", FormatBytes(facts.swap_bytes),
                                  FormatBytes(facts.swap_used_bytes))
                    : "none",
            enabled ? "swapped weights are slower than weights that are read again: keep --memory "
                      "below what is available, or turn swap off with 'swapoff -a'"
                    : "")
      .figures = {{"total_bytes", facts.swap_bytes}, {"used_bytes", facts.swap_used_bytes}};
}

void CheckMemlock(const MachineFacts& facts, HealthReport* report) {
  constexpr uint64_t kEnough = kMiB;
  const bool low = facts.memlock_bytes.value_or(kEnough) < kEnough;
  HealthCheck& check =
      report->Add("memlock", low ? Verdict::kWarn : Verdict::kOk,
                  facts.memlock_bytes
                      ? fmt::format("{}: pinned weights and the state of a session are locked "
                                    "against swapping where they fit in",
                                    FormatBytes(*facts.memlock_bytes))
                      : "no limit: pinned weights and the state of a session will not be swapped",
                  low ? "weights that stay may be swapped out, and kernels before 5.12 may refuse "
                        "io_uring: raise it with 'ulimit -l'"
                      : "");
  check.figures = {{"limit_bytes", nullptr}};
  if (facts.memlock_bytes) check.figures["limit_bytes"] = *facts.memlock_bytes;
}

}  // namespace

void CheckMachine(const MachineFacts& facts, HealthReport* report) {
  CheckCpu(facts, report);
  CheckCores(report);
  CheckMemory(facts, report);
  CheckSwap(facts, report);
  CheckMemlock(facts, report);
}

void CheckFileSystem(const std::filesystem::path& folder, HealthReport* report) {
  const FileSystemFacts facts = ReadFileSystemFacts(folder);
  const std::string type = facts.type.empty() ? "unknown" : facts.type;
  report
      ->Add("file system", facts.is_remote ? Verdict::kWarn : Verdict::kOk,
            fmt::format("{}, {} free", type, FormatBytes(facts.free_bytes)),
            facts.is_remote ? "weights are read for every token: keep them on a local drive" : "")
      .figures = {{"folder", std::filesystem::absolute(folder).string()},
                  {"type", type},
                  {"free_bytes", facts.free_bytes}};
}

}  // namespace thimble
