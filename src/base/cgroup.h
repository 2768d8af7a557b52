#pragma once

#include <cstdint>
#include <optional>

namespace thimble {

/// Limits of the control groups that this process is in, the tightest on the way to the root.
/// Versions 1 and 2 of the Linux interface; nothing where no limit is set or none can be read.

/// CPUs' worth of time the group may use, e.g. 1.5.
std::optional<double> CgroupCpuQuota();

/// Bytes of memory that the group may hold in all.
std::optional<uint64_t> CgroupMemoryLimit();

/// Bytes of memory that the group may still take: its limit less what it uses now, not counting
/// page cache that the kernel would drop first.
std::optional<uint64_t> CgroupMemoryAvailable();

}  // namespace thimble
