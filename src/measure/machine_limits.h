#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"

namespace thimble {

/// Bytes a second that all threads of `pool` together read from `memory`, whole words of it, one
/// load after the other. It should exceed the caches.
double ReadBandwidth(ThreadPool& pool, std::span<const std::byte> memory,
                     std::chrono::milliseconds time);

/// Floating-point operations a second of multiply-adds out of registers, all threads together; a
/// multiplication and an addition are two.
double PeakFlops(ThreadPool& pool, std::chrono::milliseconds time);

/// The least to measure memory by.
inline constexpr uint64_t kLeastBeyondCaches = uint64_t{64} << 20;
/// Enough memory to be sure that the caches do not hold it: twice the last-level cache that the
/// system tells of, and kLeastBeyondCaches at least; 1 GiB at most.
uint64_t BeyondCaches();

}  // namespace thimble
