#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "pack/container_writer.h"

namespace thimble {

struct VerifyReport {
  bool is_container = false;
  uint64_t bytes = 0;                // read
  size_t num_checked = 0;            // extents of a container, shards of a checkpoint
  size_t num_damaged = 0;            // places found damaged
  std::vector<std::string> damages;  // the first of them: file, byte, layer, tensor or expert
};

/// Reads all of a model. Of a container every extent must have its checksum; of a checkpoint, whose
/// makers publish none, every byte must be readable and no scale of an expert NaN. What is found
/// damaged is in the report. Error(kBadModel) where the model cannot even be opened (sizes,
/// headers, manifest), Error(kInterrupted) where the observer says so. `observer` may be null.
VerifyReport VerifyModel(const std::filesystem::path& dir, PackObserver* observer);

}  // namespace thimble
