#include "doctor/machine_checks.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/byte_size.h"
#include "base/cpu_topology.h"
#include "base/thread_placement.h"
#include "engine/engine.h"
#include "memory/memory_nodes.h"

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
                 : "works, but slowly: AVX2 or AVX-512 would help; in a virtual machine, "
                   "expose the host's CPU to the guest")
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

void CheckNodes(HealthReport* report) {
  const CpuTopology topology = ReadCpuTopology();
  const MemoryNodes& memory = ProcessMemoryNodes();
  const ThreadPlacement placement =
      PlaceThreads(topology, UsablePhysicalCores(topology), Pinning::kAuto, LoadAverage());
  const bool several = topology.nodes > 1;
  const bool spread = memory.interleaves && placement.binds();
  report
      ->Add("nodes", several && !spread ? Verdict::kWarn : Verdict::kOk,
            fmt::format("sockets: {}, memory nodes: {}; compute threads {}; memory {}",
                        topology.sockets, topology.nodes,
                        placement.binds()
                            ? fmt::format("bound to CPUs {}", FormatCpuList(placement.compute))
                            : fmt::format("not bound ({})", placement.reason),
                        memory.interleaves ? "spread over the nodes"
                                           : fmt::format("not spread ({})", memory.reason)),
            several && !spread
                ? "if no other process needs these cores, bind the threads with --pin on"
                : "")
      .figures = {{"sockets", topology.sockets},
                  {"nodes", topology.nodes},
                  {"pinned_cpus", placement.compute},
                  {"interleaved", memory.interleaves}};
}

void CheckMemory(const MachineFacts& facts, const std::optional<uint64_t>& wanted_bytes,
                 HealthReport* report) {
  std::string found = fmt::format("{} available of {}", FormatBytes(facts.available_bytes),
                                  FormatBytes(facts.memory_bytes));
  found += facts.cgroup_limit_bytes
               ? fmt::format(", cgroup limit {}", FormatBytes(*facts.cgroup_limit_bytes))
               : ", no cgroup limit";
  std::string remedy;
  if (wanted_bytes && *wanted_bytes > facts.ceiling.bytes) {
    remedy = fmt::format(
        "--memory {} is more than this process can hold: {}; ask for {} or less, "
        "or raise the limit",
        FormatBytes(*wanted_bytes), facts.ceiling.reason, FormatBytes(facts.ceiling.bytes));
  } else if (facts.available_bytes < kLittleMemory) {
    remedy = "large models need 1.5 GB at least: close programs or raise the limit";
  }
  HealthCheck& check = report->Add("memory", remedy.empty() ? Verdict::kOk : Verdict::kWarn,
                                   std::move(found), remedy);
  check.figures = {{"total_bytes", facts.memory_bytes},
                   {"available_bytes", facts.available_bytes},
                   {"most_bytes", facts.ceiling.bytes},
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
  const std::optional<uint64_t>& limit = facts.limits.locked;
  const bool low = limit.value_or(kEnough) < kEnough;
  HealthCheck& check =
      report->Add("memlock", low ? Verdict::kWarn : Verdict::kOk,
                  limit ? fmt::format("{}: pinned weights and the state of a session are locked "
                                      "against swapping where they fit",
                                      FormatBytes(*limit))
                        : "no limit: pinned weights and the state of a session will not be swapped",
                  low ? "weights that stay may be swapped out, and kernels before 5.12 may refuse "
                        "io_uring: raise it with 'ulimit -l'"
                      : "");
  check.figures = {{"limit_bytes", nullptr}};
  if (limit) check.figures["limit_bytes"] = *limit;
}

// A limit as a line of the report, and what is too little of it.
struct LimitRow {
  const char* name;
  const char* option;  // of ulimit
  const std::optional<uint64_t>& value;
  uint64_t enough;
  bool is_bytes;
};

// Kimi K3 has 96 files; a server's clients take one each.
constexpr uint64_t kEnoughFiles = 1024;
// Compute threads of a large machine, reading threads, and those of a server.
constexpr uint64_t kEnoughThreads = 256;

void CheckLimits(const MachineFacts& facts, HealthReport* report) {
  const ProcessLimits& limits = facts.limits;
  const LimitRow rows[] = {
      {"open files", "ulimit -n", limits.open_files, kEnoughFiles, false},
      {"threads of this user", "ulimit -u", limits.user_threads, kEnoughThreads, false},
      {"threads of the group", "pids.max", limits.group_threads, kEnoughThreads, false},
      {"address space", "ulimit -v", limits.address_space, UINT64_MAX, true},
      {"data segment", "ulimit -d", limits.data, UINT64_MAX, true},
      {"stack", "ulimit -s", limits.stack, kMiB, true},
      {"file size", "ulimit -f", limits.file_bytes, UINT64_MAX, true},
  };
  std::string found;
  std::string low;
  nlohmann::ordered_json figures;
  for (const LimitRow& row : rows) {
    figures[row.name] = nullptr;
    if (!row.value) continue;
    figures[row.name] = *row.value;
    const std::string value = row.is_bytes ? FormatBytes(*row.value) : std::to_string(*row.value);
    found += fmt::format("{}{} {}", found.empty() ? "" : ", ", row.name, value);
    if (*row.value < row.enough) {
      low += fmt::format("{}{} ({})", low.empty() ? "" : ", ", row.name, row.option);
    }
  }
  report
      ->Add("limits", low.empty() ? Verdict::kOk : Verdict::kWarn, found.empty() ? "none" : found,
            low.empty() ? "" : fmt::format("large models may reach these limits; raise {}", low))
      .figures = std::move(figures);
}

void CheckKernelFiles(const MachineFacts& facts, HealthReport* report) {
  if (facts.missing.empty()) return;
  const std::string missing = fmt::format("{}", fmt::join(facts.missing, " and "));
  report
      ->Add("kernel", Verdict::kWarn, fmt::format("{} not mounted", missing),
            "the figures for memory, cores and limits are estimates: mount what "
            "is missing, or give --memory and -t")
      .figures = {{"missing", facts.missing}};
}

}  // namespace

void CheckMachine(const MachineFacts& facts, const std::optional<uint64_t>& wanted_bytes,
                  HealthReport* report) {
  CheckKernelFiles(facts, report);
  CheckCpu(facts, report);
  CheckCores(report);
  CheckNodes(report);
  CheckMemory(facts, wanted_bytes, report);
  CheckSwap(facts, report);
  CheckMemlock(facts, report);
  CheckLimits(facts, report);
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
