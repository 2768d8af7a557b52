#pragma once

#include <cstdint>
#include <vector>

#include "format/model_config.h"
#include "format/tensor_store.h"
#include "residency/trunk_schedule.h"

namespace thimble {

/// Where a model's weights lie, as far as memory depends on it: of a checkpoint on disk, or of one
/// that nobody has downloaded yet.
struct WeightLayout {
  std::vector<TrunkEntry> trunk;      // in reading order
  uint64_t expert_bytes = 0;          // of one expert, decoded; 0: the model has none
  uint64_t stored_expert_bytes = 0;   // what one takes on disk, on the average
  uint64_t expert_slot_bytes = 0;     // memory of the expert that alignment adds most to
  uint64_t expert_scratch_bytes = 0;  // memory to decode one with
};

/// The layout of a checkpoint.
WeightLayout LayOutWeights(const ModelConfig& config, const TensorStore& store);

/// The layout of an ideal checkpoint: a file for each layer and one for the rest, tensors back to
/// back in the dtypes of the published one, none aligned by luck. A plan made from it differs from
/// that of the real files by no more than alignment: under two pages a block and an expert.
WeightLayout LayOutWeights(const ModelConfig& config);

/// The trunk of a checkpoint in reading order: every layer's tensors, then those outside the layers
/// but for the embedding, which is read by rows as tokens come.
std::vector<TrunkEntry> ListTrunk(const ModelConfig& config, const TensorStore& store);

}  // namespace thimble
