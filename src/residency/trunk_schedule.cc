#include "residency/trunk_schedule.h"

#include <algorithm>

#include "base/checked_math.h"
#include "base/error.h"
#include "residency/weight_layout.h"

namespace thimble {
namespace {

constexpr uint64_t kAlignment = BlockReader::kAlignment;

class Builder {
 public:
  explicit Builder(uint64_t block_bytes) : block_bytes_(block_bytes / kAlignment * kAlignment) {}

  void Add(const TrunkEntry& entry) {
    const auto& [tensor, extent, granule] = entry;
    if (tensor.layer == kNoLayer && !in_head_) StartHead();
    for (size_t row = 0; row < extent.rows;) {
      size_t rows = RowsThatFit(extent, row, granule);
      if (rows == 0) {
        CloseBlock();
        rows = RowsThatFit(extent, row, granule);
        THIMBLE_CHECK(rows > 0);
      }
      AddPiece(tensor, extent, row, rows);
      row += rows;
    }
  }

  TrunkSchedule Finish() {
    CloseBlock();
    if (!in_head_) schedule_.head_block = schedule_.blocks.size();
    return std::move(schedule_);
  }

 private:
  void StartHead() {
    CloseBlock();
    in_head_ = true;
    schedule_.head_block = schedule_.blocks.size();
  }

  size_t RowsThatFit(const TensorExtent& extent, size_t row, size_t granule) const {
    const uint64_t slack = (extent.offset + row * extent.RowBytes()) % kAlignment;
    const uint64_t room = block_bytes_ - open_.bytes;
    if (room <= slack) return 0;
    const uint64_t fit = (room - slack) / extent.RowBytes();
    return std::min<uint64_t>(fit / granule * granule, extent.rows - row);
  }

  void AddPiece(const TensorAddress& tensor, const TensorExtent& extent, size_t row, size_t rows) {
    const uint64_t offset = extent.offset + row * extent.RowBytes();
    const uint64_t bytes = rows * extent.RowBytes();
    TrunkPiece piece = {};
    piece.tensor = tensor;
    piece.first_row = row;
    piece.rows = {TrunkFormat(extent.dtype), rows, extent.cols, nullptr, nullptr};
    piece.read = AlignedRead(extent.file, offset, bytes);
    piece.read_offset = open_.bytes;
    piece.data_offset = open_.bytes + (offset - piece.read.offset);
    open_.bytes += piece.read.bytes;
    open_.read_bytes += bytes;
    ++open_.num_pieces;
    schedule_.pieces.push_back(piece);
  }

  void CloseBlock() {
    if (open_.num_pieces > 0) {
      schedule_.bytes += open_.bytes;
      schedule_.max_block_bytes = std::max(schedule_.max_block_bytes, open_.bytes);
      schedule_.blocks.push_back(open_);
    }
    open_ = {schedule_.pieces.size(), 0, 0, 0};
  }

  uint64_t block_bytes_;
  TrunkSchedule schedule_;
  TrunkBlock open_ = {0, 0, 0, 0};
  bool in_head_ = false;
};

}  // namespace

WeightFormat TrunkFormat(DType dtype) {
  THIMBLE_CHECK(dtype != DType::kU8);
  return dtype == DType::kBF16 ? WeightFormat::kBF16 : WeightFormat::kF32;
}

ReadRequest AlignedRead(uint32_t file, uint64_t offset, uint64_t bytes) {
  ReadRequest read;
  read.file = file;
  read.offset = offset / kAlignment * kAlignment;
  read.needed_bytes = offset + bytes - read.offset;
  read.bytes = RoundUp<uint64_t>(read.needed_bytes, kAlignment);
  return read;
}

TrunkSchedule TrunkSchedule::Build(std::span<const TrunkEntry> trunk, uint64_t block_bytes) {
  Builder builder(std::max(block_bytes, MinBlockBytes(trunk)));
  for (const TrunkEntry& entry : trunk) builder.Add(entry);
  return builder.Finish();
}

TrunkSchedule TrunkSchedule::Build(const ModelConfig& config, const TensorStore& store,
                                   uint64_t block_bytes) {
  return Build(ListTrunk(config, store), block_bytes);
}

uint64_t TrunkSchedule::MinBlockBytes(std::span<const TrunkEntry> trunk) {
  uint64_t most = kAlignment;
  for (const TrunkEntry& entry : trunk) {
    most = std::max(most, entry.granule * entry.extent.RowBytes() + kAlignment);
  }
  return RoundUp(most, kAlignment);
}

uint64_t TrunkSchedule::MinBlockBytes(const ModelConfig& config, const TensorStore& store) {
  return MinBlockBytes(ListTrunk(config, store));
}

}  // namespace thimble
