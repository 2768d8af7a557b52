#include "measure/stored_matrix.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

#include "base/bf16.h"
#include "codec/coded_bf16.h"
#include "kernels/mxfp4.h"

namespace thimble {
namespace {

// A tile as stored, and its values.
struct Tile {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;  // kMXFP4 only
  std::vector<double> values;
};

// E2M1 codes, the low nibble first, and E8M0 scales.
Tile MxTile(size_t cols, std::mt19937_64& random) {
  Tile tile;
  const size_t elements = StoredMatrix::kTileRows * cols;
  tile.data.resize(elements / 2);
  tile.scales.resize(elements / kMxGroup);
  for (uint8_t& pair : tile.data) pair = static_cast<uint8_t>(random());
  // Weights of a few hundredths, as trained ones are.
  for (uint8_t& scale : tile.scales) scale = static_cast<uint8_t>(118 + random() % 4);
  for (size_t i = 0; i < elements; ++i) {
    const unsigned pair = tile.data[i / 2];
    const unsigned code = i % 2 == 0 ? pair & 15U : pair >> 4U;
    tile.values.push_back(kE2M1[code] * kE8M0[tile.scales[i / kMxGroup]]);
  }
  return tile;
}

// Rows of signed codes, and behind each its scales, small powers of two.
Tile Q8Tile(size_t cols, std::mt19937_64& random) {
  Tile tile;
  std::vector<int> codes(cols);
  for (size_t row = 0; row < StoredMatrix::kTileRows; ++row) {
    for (int& code : codes) {
      code = static_cast<int>(random() % 255) - 127;
      tile.data.push_back(static_cast<uint8_t>(code));
    }
    for (size_t group = 0; group < cols / kQ8Group; ++group) {
      const float scale = 0x1p-12F * static_cast<float>(1U << random() % 2);
      const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16U);
      tile.data.push_back(static_cast<uint8_t>(half));
      tile.data.push_back(static_cast<uint8_t>(half >> 8U));
      for (size_t i = 0; i < kQ8Group; ++i) {
        tile.values.push_back(codes[group * kQ8Group + i] * double{scale});
      }
    }
  }
  return tile;
}

Tile MakeTile(WeightFormat format, size_t cols) {
  std::mt19937_64 random(1);
  if (format == WeightFormat::kMXFP4) return MxTile(cols, random);
  if (format == WeightFormat::kQ8) return Q8Tile(cols, random);
  Tile tile;
  std::normal_distribution<float> normal(0.0F, 0.02F);
  std::vector<uint16_t> halves;
  std::vector<float> floats;
  for (size_t i = 0; i < StoredMatrix::kTileRows * cols; ++i) {
    floats.push_back(normal(random));
    halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(floats.back()) >> 16U));
    const float rounded = FloatOfBF16(halves.back());
    tile.values.push_back(format == WeightFormat::kF32 ? floats.back() : rounded);
  }
  if (format == WeightFormat::kCodedBF16) {
    AppendCodedGroup(halves.data(), StoredMatrix::kTileRows, cols, &tile.data);
    return tile;
  }
  const bool wide = format == WeightFormat::kF32;
  tile.data.resize(floats.size() * (wide ? sizeof(float) : sizeof(uint16_t)));
  std::memcpy(tile.data.data(), wide ? static_cast<const void*>(floats.data()) : halves.data(),
              tile.data.size());
  return tile;
}

}  // namespace

StoredMatrix::StoredMatrix(WeightFormat format, uint64_t bytes, size_t cols, MemoryBudget& budget) {
  Tile tile = MakeTile(format, cols);
  const uint64_t tile_bytes = tile.data.size() + tile.scales.size();
  const size_t num_tiles = std::max<uint64_t>(1, bytes / tile_bytes);
  buffer_ = Buffer(budget, "weights to measure by", num_tiles * tile_bytes);
  const uint64_t data_bytes = num_tiles * tile.data.size();
  Repeat(tile.data, 0, num_tiles);
  Repeat(tile.scales, data_bytes, num_tiles);

  const auto* data = reinterpret_cast<const uint8_t*>(buffer_.data());
  view_ = {format, num_tiles * kTileRows, cols, data, nullptr};
  if (format == WeightFormat::kMXFP4) view_.scales = data + data_bytes;
  if (format == WeightFormat::kCodedBF16) {
    for (size_t i = 1; i <= num_tiles; ++i) {
      group_ends_.push_back(static_cast<uint32_t>(i * tile.data.size()));
    }
    view_.coded = {group_ends_.data(), kTileRows, view_.rows};
  }
  values_ = std::move(tile.values);
}

void StoredMatrix::Repeat(const std::vector<uint8_t>& tile, uint64_t offset, size_t num_tiles) {
  for (size_t i = 0; i < num_tiles; ++i) {
    std::copy(tile.begin(), tile.end(),
              reinterpret_cast<uint8_t*>(buffer_.data()) + offset + i * tile.size());
  }
}

}  // namespace thimble
