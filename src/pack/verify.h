#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "format/tensor_store.h"
#include "pack/container_writer.h"

namespace thimble {

struct VerifyReport {
  bool is_container = false;
  uint64_t bytes = 0;                // read
  size_t num_checked = 0;            // extents of a container, shards of a checkpoint
  size_t num_hashed = 0;             // of the latter, compared with their published hash
  size_t num_damaged = 0;            // places found damaged
  std::vector<std::string> damages;  // the first of them: file, byte, layer, tensor or expert
};

/// Reads all of a model. Of a container every extent must have its checksum. Of a checkpoint every
/// file must have the hash that the hub's tools left beside it (format/published_hash.h), where
/// they did; every byte of its shards must be readable and no scale of an expert NaN. What is found
/// damaged is in the report. Error(kBadModel) where the model cannot even be opened (sizes,
/// headers, manifest), Error(kInterrupted) where the observer says so. `observer` may be null.
VerifyReport VerifyModel(const std::filesystem::path& dir, PackObserver* observer);

/// Error(kBadModel) naming the first shard of a checkpoint that has not its published hash. Reads
/// the shards that have one, and no other.
void CheckPublishedHashes(const std::filesystem::path& dir, const TensorStore& store,
                          PackObserver* observer);

}  // namespace thimble
