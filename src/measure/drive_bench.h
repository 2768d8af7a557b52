#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "measure/kernel_bench.h"
#include "memory/memory_budget.h"

namespace thimble {

struct DriveBenchOptions {
  std::vector<std::filesystem::path> files;  // to read from
  /// Of a read at a random place: an expert's.
  uint64_t random_bytes = 0;
  size_t rounds = 3;
  std::chrono::milliseconds time{500};  // of each figure, in every round
  /// Asked before each read. False: Error(kInterrupted).
  std::function<bool()> go_on = nullptr;
};

struct DriveBenchReport {
  std::string reader;    // how it read, in words
  std::string obstacle;  // why nothing was measured; empty where it was
};

/// Times the engine's own reader past the page cache: one block after the other, as it reads the
/// trunk, and at random places, as it reads experts; beside what plain direct reads from as many
/// threads as there are reads in flight get from the same files (ProbeDrive). What the reader
/// brings is compared with plain buffered reads first: Error(kRuntime) where it differs. Where the
/// page cache cannot be kept out, or the drive delivers less than was read, nothing is measured,
/// and the report says why. Memory is charged to `budget`: four blocks of 8 MiB or of the random
/// reads' size, and 16 MiB.
DriveBenchReport BenchDrive(const DriveBenchOptions& options, MemoryBudget& budget,
                            const MeasurementSink& sink);

}  // namespace thimble
