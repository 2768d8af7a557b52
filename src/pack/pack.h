#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "pack/container_writer.h"

namespace thimble {

/// What a pack or synth has made, or found made.
struct PackResult {
  WriteOutcome outcome = WriteOutcome::kWritten;
  uint64_t bytes = 0;  // of all data files
  size_t files = 0;
};

/// Packs the checkpoint in `model` into a container: core and small files in `directories[0]`, the
/// experts in all of them by turns. What WriteContainer says holds; Error(kBadModel) where the
/// checkpoint is damaged, Error(kUsage) where it is a container already.
PackResult PackModel(const std::filesystem::path& model,
                     const std::vector<std::filesystem::path>& directories,
                     const WriteOptions& options, PackObserver* observer);

}  // namespace thimble
