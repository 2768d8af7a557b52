#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "measure/machine_limits.h"
#include "measure/measurement.h"
#include "memory/memory_budget.h"

namespace thimble {

struct KernelBenchOptions {
  size_t num_threads = 1;
  /// Of the weights, states and caches that the kernels pass over, each in turn; BeyondCaches() or
  /// less.
  uint64_t bytes = 0;
  size_t rounds = 5;
  /// Of each figure and of the machine's limit, in every round.
  std::chrono::milliseconds time{15};
  /// Asked before each figure. False: Error(kInterrupted).
  std::function<bool()> go_on = nullptr;
};

/// What is needed beside the memory that the kernels pass over.
uint64_t KernelBenchRestBytes(size_t num_threads);

/// Told of each measurement as soon as it is made.
using MeasurementSink = std::function<void(const Measurement&)>;

/// Times the kernels that take the time of a sweep, on one thread and on all: products of one token
/// in each stored format, with rows of 4,096 and ("short rows") 1,024 elements, and KDA's step, as
/// bytes a second beside those of a plain reading loop; MLA's attention of several heads, and
/// products of 4, 64 and 512 tokens on all threads, as operations a second beside those of
/// multiply-adds out of registers. Each result is compared with double precision first:
/// Error(kRuntime) where it is wrong. Memory is charged to `budget`: `bytes`, or 4 MiB for each
/// thread if that is more, and KernelBenchRestBytes().
void BenchKernels(const KernelBenchOptions& options, MemoryBudget& budget,
                  const MeasurementSink& sink);

}  // namespace thimble
