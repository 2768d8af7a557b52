#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

#include "base/thread_pool.h"

namespace thimble {

/// Does the `count`-th small piece of work on thread `thread` of a pool.
using PieceWork = std::function<void(size_t thread, size_t count)>;

/// Pieces that all threads of `pool` together do in a second when each works for `time`. Each
/// thread goes by the median of its pieces, so that whatever else runs on the machine, which
/// interrupts a few of them, does not count. A piece should take microseconds at least.
double PiecesPerSecond(ThreadPool& pool, std::chrono::milliseconds time, const PieceWork& work);

}  // namespace thimble
