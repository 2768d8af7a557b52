#include "residency/trunk_schedule.h"

#include <algorithm>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "residency/weight_layout.h"

namespace thimble {
namespace {

constexpr uint64_t kAlignment = BlockReader::kAlignment;

uint64_t RoundDown(uint64_t offset) { return offset / kAlignment * kAlignment; }

// A stretch of a file that a block reads: the pages of [begin, end).
struct Stretch {
  uint32_t file;
  uint64_t begin;
  uint64_t end;

  uint64_t FirstPage() const { return RoundDown(begin); }
  uint64_t PagesEnd() const { return RoundUp(end, kAlignment); }
  uint64_t Bytes() const { return PagesEnd() - FirstPage(); }
  bool Touches(const Stretch& other) const {
    return file == other.file && FirstPage() <= other.PagesEnd() && other.FirstPage() <= PagesEnd();
  }
};

// The stretches that a block reads, none touching another.
class Stretches {
 public:
  void Add(Stretch stretch) {
    const auto touching = std::partition(parts_.begin(), parts_.end(),
                                         [&](const Stretch& s) { return !s.Touches(stretch); });
    for (auto part = touching; part != parts_.end(); ++part) {
      stretch.begin = std::min(stretch.begin, part->begin);
      stretch.end = std::max(stretch.end, part->end);
    }
    parts_.erase(touching, parts_.end());
    parts_.push_back(stretch);
  }

  // Where the data from `offset` on must end to cost at most `room` bytes of further pages. What it
  // would save to reach one more stretch is left out.
  uint64_t EndWithin(uint32_t file, uint64_t offset, uint64_t room) const {
    const uint64_t page = RoundDown(offset);
    for (const Stretch& part : parts_) {
      const bool goes_on = part.file == file && part.FirstPage() <= page && page <= part.PagesEnd();
      if (goes_on) return part.PagesEnd() + room;
    }
    return page + room;
  }

  uint64_t Bytes() const {
    uint64_t bytes = 0;
    for (const Stretch& part : parts_) bytes += part.Bytes();
    return bytes;
  }

  // In the order of the files.
  std::vector<Stretch> TakeSorted() {
    std::ranges::sort(parts_, {}, [](const Stretch& s) { return std::pair(s.file, s.begin); });
    return std::exchange(parts_, {});
  }

 private:
  std::vector<Stretch> parts_;
};

class Builder {
 public:
  explicit Builder(uint64_t block_bytes) : block_bytes_(RoundDown(block_bytes)) {}

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
    schedule_.pieces.shrink_to_fit();
    schedule_.reads.shrink_to_fit();
    schedule_.blocks.shrink_to_fit();
    return std::move(schedule_);
  }

 private:
  void StartHead() {
    CloseBlock();
    in_head_ = true;
    schedule_.head_block = schedule_.blocks.size();
  }

  size_t RowsThatFit(const TensorExtent& extent, size_t row, size_t granule) const {
    const uint64_t offset = extent.offset + extent.RowOffset(row);
    const uint64_t room = block_bytes_ - stretches_.Bytes();
    const uint64_t end = stretches_.EndWithin(extent.file, offset, room);
    if (end <= offset) return 0;
    const size_t fit = extent.RowsWithin(row, end - offset);
    return row + fit == extent.rows ? fit : fit / granule * granule;
  }

  void AddPiece(const TensorAddress& tensor, const TensorExtent& extent, size_t row, size_t rows) {
    const uint64_t offset = extent.offset + extent.RowOffset(row);
    const uint64_t bytes = extent.RowOffset(row + rows) - extent.RowOffset(row);
    TrunkPiece piece = {};
    piece.tensor = tensor;
    piece.first_row = row;
    piece.rows = {TrunkFormat(extent), rows, extent.cols};
    if (extent.is_coded()) {
      piece.rows.coded = {extent.group_ends, extent.group_rows, extent.rows, row,
                          extent.RowOffset(row)};
    }
    schedule_.pieces.push_back(piece);
    places_.push_back({extent.file, offset, offset + bytes});
    stretches_.Add(places_.back());
    open_.read_bytes += bytes;
    ++open_.num_pieces;
  }

  void CloseBlock() {
    if (open_.num_pieces > 0) {
      LayOut();
      schedule_.bytes += open_.bytes;
      schedule_.max_block_bytes = std::max(schedule_.max_block_bytes, open_.bytes);
      schedule_.blocks.push_back(open_);
    }
    places_.clear();
    open_ = {schedule_.pieces.size(), 0, schedule_.reads.size(), 0, 0, 0};
  }

  // Puts the reads of the open block one after the other, and says where its pieces come to lie.
  void LayOut() {
    for (const Stretch& stretch : stretches_.TakeSorted()) {
      const ReadRequest request =
          AlignedRead(stretch.file, stretch.begin, stretch.end - stretch.begin);
      for (size_t i = 0; i < places_.size(); ++i) {
        if (!stretch.Touches(places_[i])) continue;
        schedule_.pieces[open_.first_piece + i].data_offset =
            open_.bytes + (places_[i].begin - request.offset);
      }
      schedule_.reads.push_back({request, open_.bytes});
      open_.bytes += request.bytes;
      ++open_.num_reads;
    }
  }

  const uint64_t block_bytes_;
  TrunkSchedule schedule_;
  TrunkBlock open_ = {0, 0, 0, 0, 0, 0};
  std::vector<Stretch> places_;  // of the open block's pieces
  Stretches stretches_;          // what the open block reads
  bool in_head_ = false;
};

}  // namespace

WeightFormat TrunkFormat(const TensorExtent& extent) {
  THIMBLE_CHECK(extent.dtype != DType::kU8);
  if (extent.is_coded()) return WeightFormat::kCodedBF16;
  if (extent.dtype == DType::kQ8) return WeightFormat::kQ8;
  return extent.dtype == DType::kBF16 ? WeightFormat::kBF16 : WeightFormat::kF32;
}

namespace {

// Memory of the largest part of a tensor that cannot be cut.
uint64_t LargestGranuleBytes(const TrunkEntry& entry) {
  const TensorExtent& extent = entry.extent;
  if (!extent.is_coded()) return entry.granule * extent.RowBytes();
  uint64_t most = 0;
  for (size_t row = 0; row < extent.rows; row += entry.granule) {
    const size_t end = std::min(row + entry.granule, extent.rows);
    most = std::max(most, extent.RowOffset(end) - extent.RowOffset(row));
  }
  return most;
}

}  // namespace

ReadRequest AlignedRead(uint32_t file, uint64_t offset, uint64_t bytes) {
  ReadRequest read;
  read.file = file;
  read.offset = offset / kAlignment * kAlignment;
  read.needed_bytes = offset + bytes - read.offset;
  read.bytes = RoundUp<uint64_t>(read.needed_bytes, kAlignment);
  return read;
}

uint64_t TrunkSchedule::TableBytes() const {
  return pieces.size() * sizeof(TrunkPiece) + reads.size() * sizeof(TrunkRead) +
         blocks.size() * (sizeof(TrunkBlock) + kBlockStateBytes);
}

// What did not fit into a block starts the next, so any two neighbours hold more than one block's
// worth, but for the pages at their ends; the head starts a block of its own.
uint64_t TrunkSchedule::MostTableBytes(size_t num_tensors, uint64_t tensor_bytes,
                                       uint64_t block_bytes) {
  const uint64_t held =
      std::max(block_bytes / 2, block_bytes - std::min(block_bytes, 2 * kAlignment));
  const uint64_t blocks = 2 * (tensor_bytes / std::max<uint64_t>(held, 1)) + 3;
  const uint64_t pieces = num_tensors + blocks;
  return pieces * (sizeof(TrunkPiece) + sizeof(TrunkRead)) +
         blocks * (sizeof(TrunkBlock) + kBlockStateBytes);
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
    most = std::max(most, LargestGranuleBytes(entry) + kAlignment);
  }
  return RoundUp(most, kAlignment);
}

uint64_t TrunkSchedule::MinBlockBytes(const ModelConfig& config, const TensorStore& store) {
  return MinBlockBytes(ListTrunk(config, store));
}

}  // namespace thimble
