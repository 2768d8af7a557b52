#pragma once

#include <cstddef>

namespace thimble {

/// Physical cores that this process may use: CPUs of its affinity mask, one for each core (SMT
/// siblings share one), and no more than its cgroup's CPU quota, rounded up. At least 1. Linux;
/// reads /sys and /proc, and falls back to the affinity count where they are absent.
size_t UsablePhysicalCores();

}  // namespace thimble
