#pragma once

#include <cstdint>
#include <string>

#include "base/system_tree.h"

namespace thimble {

/// What the kernel says of this process. Without /proc the resident size is its peak, and the page
/// tables are unknown.
struct ProcessMemory {
  uint64_t rss_bytes = 0;         // VmRSS
  uint64_t peak_rss_bytes = 0;    // VmHWM
  uint64_t page_table_bytes = 0;  // VmPTE, which no other figure contains
  uint64_t major_faults = 0;
  uint64_t minor_faults = 0;
};
ProcessMemory ReadProcessMemory(const SystemTree& tree = {});

/// Gives the system the pages that the heap holds free, so that they are in no figure above.
void ReturnFreedMemory();

/// Bytes that the machine, or the cgroup where that is less, can still give to this process without
/// swapping. Without /proc: what is free, page cache not counted.
uint64_t AvailableMemory(const SystemTree& tree = {});

/// The machine's memory.
uint64_t TotalMemory(const SystemTree& tree = {});

/// The most that this process can hold, beside what others hold now, before the kernel swaps or
/// ends it; some of it is left to the kernel's own tables.
struct MemoryCeiling {
  uint64_t bytes = 0;
  std::string reason;  // "the control group allows 300 MB (/sys/fs/cgroup/x/memory.max)"
};
MemoryCeiling ReadMemoryCeiling(const SystemTree& tree = {});

/// What a process gets that asked for `bytes` of memory.
struct MemoryGrant {
  uint64_t bytes = 0;
  std::string warning;  // why it is less than was asked for; empty where it is not
};
MemoryGrant GrantMemory(uint64_t bytes, const MemoryCeiling& ceiling);

}  // namespace thimble
