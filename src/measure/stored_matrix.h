#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/weight_matrix.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"

namespace thimble {

/// Elements of a row of the matrices to measure by: as long as the trunk's.
inline constexpr size_t kMeasuredCols = 4096;

/// A matrix of normally distributed weights in one of the stored formats, to time products with.
/// Its rows repeat every kTileRows, so that it is made at the speed of memory, and so that a plain
/// reference of few rows serves for all of them.
class StoredMatrix {
 public:
  static constexpr size_t kTileRows = 16;

  /// About `bytes` of rows of `cols` elements (a multiple of 128), whole tiles, at least one.
  /// Charged to `budget`: at most bytes + one tile.
  StoredMatrix(WeightFormat format, uint64_t bytes, size_t cols, MemoryBudget& budget);

  const WeightMatrix& view() const { return view_; }
  /// All that is stored of it, scales included.
  std::span<const std::byte> memory() const { return {buffer_.data(), buffer_.bytes()}; }
  /// The values of row r, for r below kTileRows; row r + kTileRows has the same.
  const double* Row(size_t row) const { return &values_[row % kTileRows * view_.cols]; }

 private:
  void Repeat(const std::vector<uint8_t>& tile, uint64_t offset, size_t num_tiles);

  WeightMatrix view_;
  std::vector<double> values_;  // [kTileRows, cols]
  std::vector<uint32_t> group_ends_;
  Buffer buffer_;
};

}  // namespace thimble
