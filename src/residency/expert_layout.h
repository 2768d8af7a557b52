#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "format/tensor_store.h"
#include "io/block_reader.h"
#include "model/weights.h"

namespace thimble {

/// How one expert is read into a slot: its tensors, joined into runs where they are adjacent in
/// their file (in the published shards all are), and where each lies in the slot. Scales that are
/// coded are read to where the first of them belongs, and to be decoded to the same place.
struct ExpertLayout {
  std::array<ReadRequest, kExpertTensors> reads;  // the first num_reads; `out` is null
  std::array<uint64_t, kExpertTensors> read_offset = {};
  size_t num_reads = 0;
  std::array<uint64_t, kExpertTensors> data_offset = {};  // [ExpertTensor]
  uint64_t bytes = 0;  // of the slot that is used, a multiple of BlockReader::kAlignment
};
ExpertLayout LayOutExpert(const ExpertExtent& extent);

/// The matrices of an expert that lies at `slot` as `layout` says.
ExpertView ViewExpert(const ModelConfig& config, const ExpertLayout& layout, const std::byte* slot,
                      uint32_t expert);

}  // namespace thimble
