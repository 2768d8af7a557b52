#include "memory/process_memory.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "base/byte_size.h"
#include "base/cgroup.h"

namespace thimble {
namespace {

// The number of a "Name:   123 kB" line of a /proc file, in bytes.
std::optional<uint64_t> ReadProcBytes(const std::filesystem::path& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + ":")) continue;
    std::istringstream text(line.substr(name.size() + 1));
    uint64_t kibibytes = 0;
    if (text >> kibibytes) return kibibytes * kKiB;
  }
  return std::nullopt;
}

// The same by a system call, for a machine without /proc.
struct SystemMemory {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};
SystemMemory AskSystem() {
  struct sysinfo info = {};
  if (::sysinfo(&info) != 0) return {};
  return {uint64_t{info.totalram} * info.mem_unit,
          uint64_t{info.freeram + info.bufferram} * info.mem_unit};
}

uint64_t MachineAvailable(const SystemTree& tree) {
  const auto available = ReadProcBytes(tree.At("proc/meminfo"), "MemAvailable");
  return available ? *available : AskSystem().free_bytes;
}

// For the kernel's tables and buffers, which count against the same limit as the process.
uint64_t WithoutHeadroom(uint64_t room) {
  const uint64_t headroom = std::min(std::max(16 * kMiB, room / 32), room / 4);
  return room - headroom;
}

}  // namespace

ProcessMemory ReadProcessMemory(const SystemTree& tree) {
  ProcessMemory memory;
  uint64_t peak_bytes = 0;
  struct rusage usage = {};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    memory.major_faults = static_cast<uint64_t>(usage.ru_majflt);
    memory.minor_faults = static_cast<uint64_t>(usage.ru_minflt);
    peak_bytes = static_cast<uint64_t>(usage.ru_maxrss) * kKiB;
  }
  const auto status = tree.At("proc/self/status");
  memory.rss_bytes = ReadProcBytes(status, "VmRSS").value_or(peak_bytes);
  memory.peak_rss_bytes = ReadProcBytes(status, "VmHWM").value_or(peak_bytes);
  memory.page_table_bytes = ReadProcBytes(status, "VmPTE").value_or(0);
  return memory;
}

void ReturnFreedMemory() { ::malloc_trim(0); }

uint64_t AvailableMemory(const SystemTree& tree) {
  return std::min(MachineAvailable(tree),
                  CgroupMemoryAvailable(tree).value_or(std::numeric_limits<uint64_t>::max()));
}

uint64_t TotalMemory(const SystemTree& tree) {
  const auto total = ReadProcBytes(tree.At("proc/meminfo"), "MemTotal");
  return total ? *total : AskSystem().total_bytes;
}

MemoryCeiling ReadMemoryCeiling(const SystemTree& tree) {
  const uint64_t own = ReadProcessMemory(tree).rss_bytes;
  const uint64_t total = TotalMemory(tree);
  const uint64_t machine = std::min(total, MachineAvailable(tree) + own);
  const auto group = TightestMemoryGroup(own, tree);
  if (group && group->RoomBytes(own) < machine) {
    const uint64_t room = group->RoomBytes(own);
    const std::string others = group->limit_bytes - room < kMiB
                                   ? ""
                                   : fmt::format(", of which other processes hold {}",
                                                 FormatBytes(group->limit_bytes - room));
    return {WithoutHeadroom(room),
            fmt::format("the control group allows {} ({}){}", FormatBytes(group->limit_bytes),
                        group->setting, others)};
  }
  return {WithoutHeadroom(machine), fmt::format("the machine has {}, of which {} are available",
                                                FormatBytes(total), FormatBytes(machine))};
}

MemoryGrant GrantMemory(uint64_t bytes, const MemoryCeiling& ceiling) {
  if (bytes <= ceiling.bytes) return {bytes, {}};
  return {ceiling.bytes,
          fmt::format("{} of memory is more than this process can hold: {}; continuing with {}",
                      FormatBytes(bytes), ceiling.reason, FormatBytes(ceiling.bytes))};
}

}  // namespace thimble
