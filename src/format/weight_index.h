#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "format/tensor_names.h"

namespace thimble {

/// `model.safetensors.index.json`, resolved: which shard holds each tensor that is called for.
struct WeightIndex {
  std::vector<std::string> text_shards;  // names of the shards that hold such tensors
  std::vector<uint16_t> shard_of;        // [slot of TensorNames] -> index into text_shards
  std::vector<std::string> shards;       // of all tensors, by name
  size_t num_tensors = 0;                // entries, ignored ones included
  uint64_t total_size = 0;               // metadata.total_size, 0 where absent
};

/// Reads an index against the names that a configuration calls for. Error(kBadModel), naming file
/// and tensor, unless each of them is given exactly once, and nothing but them and tensors to
/// ignore. Shards are plain file names: an index cannot point outside its directory. Memory: two
/// bytes a tensor and the names to ignore, since the text is read in pieces.
WeightIndex ReadWeightIndex(const std::filesystem::path& path, const TensorNames& names);

/// The index of a checkpoint's directory. One of a single file has none; then that file holds all.
WeightIndex LoadWeightIndex(const std::filesystem::path& dir, const TensorNames& names);

}  // namespace thimble
