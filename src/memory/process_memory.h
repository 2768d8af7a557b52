#pragma once

#include <cstdint>

namespace thimble {

/// What the kernel says of this process.
struct ProcessMemory {
  uint64_t rss_bytes = 0;         // VmRSS
  uint64_t peak_rss_bytes = 0;    // VmHWM
  uint64_t page_table_bytes = 0;  // VmPTE, which no other figure contains
  uint64_t major_faults = 0;
  uint64_t minor_faults = 0;
};
ProcessMemory ReadProcessMemory();

/// Gives the system the pages that the heap holds free, so that they are in no figure above.
void ReturnFreedMemory();

/// Bytes that the machine, or the cgroup where that is less, can still give to this process without
/// swapping.
uint64_t AvailableMemory();

}  // namespace thimble
