#include "pack/quantize.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"
#include "codec/weight_matrix.h"
#include "kernels/kernels.h"
#include "kernels/mxfp4.h"
#include "pack/nearest_e2m1.h"

namespace thimble {
namespace {

constexpr size_t kGroup = 32;
static_assert(kGroup == kMxGroup && kGroup == kQ8Group);
constexpr size_t kQuantizeGrain = size_t{1} << 14;  // elements for one thread at least

constexpr uint16_t MagnitudeOf(uint16_t element) { return element & 0x7fff; }

// Codes and squared errors of magnitudes, in units of a scale. The bits of a BF16 magnitude are its
// exponent above its seven bits of fraction; less the exponent of the scale they are an index.
class CodeTable {
 public:
  CodeTable() {
    for (size_t i = 0; i < kSize; ++i) {
      const double fraction = static_cast<double>(i % kSteps) / kSteps;
      const double value = std::ldexp(1 + fraction, kLowest + static_cast<int>(i / kSteps));
      codes_[i] = NearestE2M1(value);
      const double error = value - double{kE2M1[codes_[i]]};
      errors_[i] = static_cast<float>(error * error);
    }
    errors_[0] = 0;  // stands for all that is smaller
  }

  uint8_t CodeOf(uint16_t element, int scale) const { return codes_[IndexOf(element, scale)]; }
  float ErrorOf(uint16_t element, int scale) const { return errors_[IndexOf(element, scale)]; }

 private:
  static constexpr int kSteps = 128;   // of the fraction
  static constexpr int kLowest = -12;  // exponents; below, an element is nothing beside the scale
  static constexpr int kOctaves = 16;  // half the power of two of the largest magnitude needs 2^3
  static constexpr int kSize = kOctaves * kSteps;

  static size_t IndexOf(uint16_t element, int scale) {
    const int index = MagnitudeOf(element) - (scale + kLowest) * kSteps;
    return static_cast<size_t>(std::clamp(index, 0, kSize - 1));
  }

  std::array<uint8_t, kSize> codes_;
  std::array<float, kSize> errors_;
};

// The E8M0 scale of a group of 32 elements.
int ChooseScale(const CodeTable& table, const uint16_t* group) {
  // Below 4, subnormal elements would matter, whose bits are no index.
  constexpr int kLeast = 4;
  constexpr int kMost = 254;
  uint16_t largest = 0;
  for (size_t i = 0; i < kGroup; ++i) largest = std::max(largest, MagnitudeOf(group[i]));
  const int natural = (largest >> 7) - 2;
  int best = kLeast;
  double least = std::numeric_limits<double>::infinity();
  for (const int step : {0, 1, -1}) {
    const int scale = std::clamp(natural + step, kLeast, kMost);
    float error = 0;
    for (size_t i = 0; i < kGroup; ++i) error += table.ErrorOf(group[i], scale);
    const double absolute = std::ldexp(double{error}, 2 * (scale - natural));
    if (absolute >= least) continue;
    least = absolute;
    best = scale;
  }
  return best;
}

// Adds to `loss` what a group lost; false where the kernels decode it to other values than wanted.
bool CheckGroup(const WeightMatrix& stored, const uint16_t* group,
                const std::array<float, kGroup>& wanted, WeightLoss* loss) {
  std::array<float, kGroup> decoded;
  BestKernels().decode(stored, decoded.data());
  for (size_t i = 0; i < kGroup; ++i) {
    const double weight = FloatOfBF16(group[i]);
    const double difference = double{decoded[i]} - weight;
    loss->Add({difference * difference, weight * weight});
  }
  return decoded == wanted;
}

// One group: 16 bytes of codes and a scale. False where it decodes to other values.
bool QuantizeMxGroup(const CodeTable& table, const uint16_t* group, uint8_t* codes, uint8_t* scale,
                     WeightLoss* loss) {
  const int chosen = ChooseScale(table, group);
  *scale = static_cast<uint8_t>(chosen);
  std::array<float, kGroup> wanted;
  for (size_t i = 0; i < kGroup; ++i) {
    const uint8_t magnitude = table.CodeOf(group[i], chosen);
    const bool negative = magnitude != 0 && group[i] >> 15 != 0;
    const auto code = static_cast<uint8_t>(magnitude | (negative ? 8 : 0));
    wanted[i] = kE2M1[code] * kE8M0[*scale];
    codes[i / 2] = static_cast<uint8_t>(i % 2 == 0 ? code : codes[i / 2] | code << 4);
  }
  return CheckGroup({WeightFormat::kMXFP4, 1, kGroup, codes, scale}, group, wanted, loss);
}

// The scale of a group of eight-bit codes, a BF16 number; zero for zeros, and for what is not
// finite, which the loss shows.
uint16_t ChooseQ8Scale(const uint16_t* group) {
  uint16_t largest = 0;
  for (size_t i = 0; i < kGroup; ++i) largest = std::max(largest, MagnitudeOf(group[i]));
  constexpr uint16_t kInfinity = 0x7f80;
  if (largest >= kInfinity) return 0;
  const auto bits = std::bit_cast<uint32_t>(FloatOfBF16(largest) / 127);
  return static_cast<uint16_t>((bits + 0xffff) >> 16);
}

// One group: 32 codes and two bytes of scale. False where it decodes to other values.
bool QuantizeQ8Group(const uint16_t* group, uint8_t* codes, uint8_t* scale, WeightLoss* loss) {
  // Added and taken away again, it leaves a double rounded to an integer, ties to even.
  constexpr double kRounder = 0x1.8p52;
  const uint16_t chosen = ChooseQ8Scale(group);
  const double unit = FloatOfBF16(chosen);
  // As the kernels see it: a row of one group.
  std::array<uint8_t, Q8RowBytes(kGroup)> row;
  std::array<float, kGroup> wanted;
  for (size_t i = 0; i < kGroup; ++i) {
    const double code = unit == 0 ? 0 : double{FloatOfBF16(group[i])} / unit + kRounder - kRounder;
    row[i] = static_cast<uint8_t>(static_cast<int8_t>(code));
    wanted[i] = static_cast<float>(code * unit);
  }
  std::memcpy(row.data() + kGroup, &chosen, sizeof(chosen));
  std::memcpy(codes, row.data(), kGroup);
  std::memcpy(scale, &chosen, sizeof(chosen));
  return CheckGroup({WeightFormat::kQ8, 1, kGroup, row.data()}, group, wanted, loss);
}

// Calls quantize(row, column, loss) for every group, which returns whether it is as wanted.
template <typename F>
std::optional<WeightLoss> QuantizeGroups(const BF16Matrix& matrix, ThreadPool& pool,
                                         const F& quantize) {
  THIMBLE_CHECK(matrix.cols > 0 && matrix.cols % kGroup == 0);
  std::vector<WeightLoss> losses(matrix.rows);  // added up in order, whoever made them
  std::atomic<bool> same = true;
  pool.ParallelFor(matrix.rows, std::max<size_t>(1, kQuantizeGrain / matrix.cols),
                   [&](const Range& rows) {
                     for (size_t row = rows.first; row < rows.last; ++row) {
                       for (size_t col = 0; col < matrix.cols; col += kGroup) {
                         if (!quantize(row, col, &losses[row])) same = false;
                       }
                     }
                   });
  if (!same) return std::nullopt;
  WeightLoss sum;
  for (const WeightLoss& loss : losses) sum.Add(loss);
  return sum;
}

}  // namespace

uint64_t Mxfp4Bytes(const BF16Matrix& matrix) {
  const uint64_t elements = uint64_t{matrix.rows} * matrix.cols;
  return elements / 2 + elements / kMxGroup;
}

std::optional<WeightLoss> QuantizeMxfp4(const BF16Matrix& matrix, ThreadPool& pool, uint8_t* out) {
  static const CodeTable table;
  uint8_t* scales = out + matrix.rows * matrix.cols / 2;
  return QuantizeGroups(matrix, pool, [&](size_t row, size_t col, WeightLoss* loss) {
    const size_t at = row * matrix.cols + col;
    return QuantizeMxGroup(table, matrix.elements + at, out + at / 2, scales + at / kMxGroup, loss);
  });
}

std::optional<WeightLoss> QuantizeQ8(const BF16Matrix& matrix, ThreadPool& pool, uint8_t* out) {
  const uint64_t row_bytes = Q8RowBytes(matrix.cols);
  return QuantizeGroups(matrix, pool, [&](size_t row, size_t col, WeightLoss* loss) {
    uint8_t* codes = out + row * row_bytes;
    return QuantizeQ8Group(matrix.elements + row * matrix.cols + col, codes + col,
                           codes + matrix.cols + col / kQ8Group * sizeof(uint16_t), loss);
  });
}

}  // namespace thimble
