#include "memory/process_memory.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "base/byte_size.h"
#include "base/cgroup.h"

namespace thimble {
namespace {

// The number of a "Name:   123 kB" line of a /proc file, in bytes; 0 where absent.
uint64_t ReadProcBytes(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size(), name) == 0 && line[name.size()] == ':') {
      return std::stoull(line.substr(name.size() + 1)) * kKiB;
    }
  }
  return 0;
}

}  // namespace

ProcessMemory ReadProcessMemory() {
  ProcessMemory memory;
  memory.rss_bytes = ReadProcBytes("/proc/self/status", "VmRSS");
  memory.peak_rss_bytes = ReadProcBytes("/proc/self/status", "VmHWM");
  memory.page_table_bytes = ReadProcBytes("/proc/self/status", "VmPTE");
  struct rusage usage = {};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    memory.major_faults = static_cast<uint64_t>(usage.ru_majflt);
    memory.minor_faults = static_cast<uint64_t>(usage.ru_minflt);
  }
  return memory;
}

void ReturnFreedMemory() { ::malloc_trim(0); }

uint64_t AvailableMemory() {
  const uint64_t machine = ReadProcBytes("/proc/meminfo", "MemAvailable");
  return std::min(machine, CgroupMemoryAvailable().value_or(std::numeric_limits<uint64_t>::max()));
}

}  // namespace thimble
