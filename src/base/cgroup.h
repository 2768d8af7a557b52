#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/system_tree.h"

namespace thimble {

/// Limits of the control groups that this process is in: the tightest on the way to the root.
/// Versions 1 and 2 of the Linux interface; nothing where no limit is set or none can be read.

/// CPUs' worth of time the group may use, e.g. 1.5.
std::optional<double> CgroupCpuQuota(const SystemTree& tree = {});

/// Processes and threads that the group may have (pids.max).
std::optional<uint64_t> CgroupTaskLimit(const SystemTree& tree = {});

/// A limit on memory and how much of it is in use.
struct CgroupMemory {
  uint64_t limit_bytes = 0;
  std::string setting;            // the file that holds it
  uint64_t held_bytes = 0;        // in use now, without what the kernel can drop
  uint64_t droppable_bytes = 0;   // page cache and reclaimable tables
  uint64_t first_drop_bytes = 0;  // of these, page cache that was not used for long

  /// What the group may still take before the kernel looks for pages in use.
  uint64_t AvailableBytes() const {
    const uint64_t bound = held_bytes + (droppable_bytes - first_drop_bytes);
    return limit_bytes - (bound < limit_bytes ? bound : limit_bytes);
  }
  /// What one process of `own_bytes` can hold in all beside the others of the group.
  uint64_t RoomBytes(uint64_t own_bytes) const {
    const uint64_t others = held_bytes - (own_bytes < held_bytes ? own_bytes : held_bytes);
    return limit_bytes - (others < limit_bytes ? others : limit_bytes);
  }
};

/// The limit with the least room for this process of `own_bytes`. Beyond memory.max the kernel ends
/// a process, beyond memory.high it slows it down to a crawl: both count.
std::optional<CgroupMemory> TightestMemoryGroup(uint64_t own_bytes, const SystemTree& tree = {});

/// The lowest limit on memory.
std::optional<uint64_t> CgroupMemoryLimit(const SystemTree& tree = {});

/// Bytes of memory that the group may still take: its limit less what it uses now, not counting
/// page cache that the kernel would drop first.
std::optional<uint64_t> CgroupMemoryAvailable(const SystemTree& tree = {});

}  // namespace thimble
