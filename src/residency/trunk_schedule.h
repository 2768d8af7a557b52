#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "format/model_config.h"
#include "format/tensor_store.h"
#include "io/block_reader.h"
#include "model/weights.h"

namespace thimble {

/// A tensor of the trunk: where it lies, and how many of its rows must not be parted.
struct TrunkEntry {
  TensorAddress tensor;
  TensorExtent extent;
  size_t granule;
};

/// Some rows of one tensor.
struct TrunkPiece {
  TensorAddress tensor;
  size_t first_row;
  WeightMatrix rows;  // data is null: it lies at data_offset of the block's memory
  uint64_t data_offset;
};

/// A read that brings one or more pieces of a block.
struct TrunkRead {
  ReadRequest request;    // out is null: the data goes to block_offset of the block's memory
  uint64_t block_offset;  // a multiple of BlockReader::kAlignment
};

/// Pieces that are read, held and dropped together. What lies next to each other in a file, or has
/// a page in common, is one read, whatever the order of the pieces.
struct TrunkBlock {
  size_t first_piece;
  size_t num_pieces;
  size_t first_read;
  size_t num_reads;
  uint64_t bytes;       // of memory, a multiple of BlockReader::kAlignment
  uint64_t read_bytes;  // of the tensors themselves
};

/// The trunk in reading order, cut into blocks: every layer's small tensors, then its matrices by
/// rows; then what lies outside the layers, the head last. The order and the cuts depend only on
/// the model and the block size, and never change a result: rows are computed one by one.
struct TrunkSchedule {
  std::vector<TrunkPiece> pieces;
  std::vector<TrunkRead> reads;
  std::vector<TrunkBlock> blocks;
  size_t head_block = 0;  // first block after the layers
  uint64_t bytes = 0;     // memory for all blocks
  uint64_t max_block_bytes = 0;

  /// Memory of the schedule itself, and of kBlockStateBytes that a stream keeps of each block.
  uint64_t TableBytes() const;
  static constexpr uint64_t kBlockStateBytes = 96;
  /// The most that TableBytes comes to for tensors of this number and size, cut into blocks of
  /// `block_bytes`.
  static uint64_t MostTableBytes(size_t num_tensors, uint64_t tensor_bytes, uint64_t block_bytes);

  /// Blocks hold at most `block_bytes`, or MinBlockBytes where that is more. `trunk` is in reading
  /// order, what lies outside the layers last.
  static TrunkSchedule Build(std::span<const TrunkEntry> trunk, uint64_t block_bytes);
  static TrunkSchedule Build(const ModelConfig& config, const TensorStore& store,
                             uint64_t block_bytes);
  /// Memory of the largest unit that cannot be cut.
  static uint64_t MinBlockBytes(std::span<const TrunkEntry> trunk);
  static uint64_t MinBlockBytes(const ModelConfig& config, const TensorStore& store);
};

/// The format of a trunk tensor, whose dtype is BF16 or F32.
WeightFormat TrunkFormat(const TensorExtent& extent);

/// The aligned read that covers [offset, offset + bytes) of a file. `out` is left null.
ReadRequest AlignedRead(uint32_t file, uint64_t offset, uint64_t bytes);

}  // namespace thimble
