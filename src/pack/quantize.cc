#include "pack/quantize.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/weight_matrix.h"
#include "kernels/kernels.h"
#include "kernels/mxfp4.h"

namespace thimble {
namespace {

constexpr size_t kGrain = size_t{1} << 14;  // elements for one thread at least

constexpr uint16_t MagnitudeOf(uint16_t element) { return element & 0x7fff; }

float ValueOf(uint16_t element) { return std::bit_cast<float>(uint32_t{element} << 16); }

// The code nearest to a magnitude, of two the even one.
uint8_t NearestCode(double magnitude) {
  const auto distance = [&](uint8_t code) { return std::abs(magnitude - double{kE2M1[code]}); };
  uint8_t best = 0;
  for (uint8_t code = 1; code < 8; ++code) {
    const bool wins_tie = distance(code) == distance(best) && code % 2 == 0;
    if (distance(code) < distance(best) || wins_tie) best = code;
  }
  return best;
}

// Codes and squared errors of magnitudes, in units of a scale. The bits of a BF16 magnitude are its
// exponent above its seven bits of fraction; less the exponent of the scale they are an index.
class CodeTable {
 public:
  CodeTable() {
    for (size_t i = 0; i < kSize; ++i) {
      const double fraction = static_cast<double>(i % kSteps) / kSteps;
      const double value = std::ldexp(1 + fraction, kLowest + static_cast<int>(i / kSteps));
      codes_[i] = NearestCode(value);
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
  for (size_t i = 0; i < kMxGroup; ++i) largest = std::max(largest, MagnitudeOf(group[i]));
  const int natural = (largest >> 7) - 2;
  int best = kLeast;
  double least = std::numeric_limits<double>::infinity();
  for (const int step : {0, 1, -1}) {
    const int scale = std::clamp(natural + step, kLeast, kMost);
    float error = 0;
    for (size_t i = 0; i < kMxGroup; ++i) error += table.ErrorOf(group[i], scale);
    const double absolute = std::ldexp(double{error}, 2 * (scale - natural));
    if (absolute >= least) continue;
    least = absolute;
    best = scale;
  }
  return best;
}

// One group: 16 bytes of codes and a scale. False where it decodes to other values.
bool QuantizeGroup(const CodeTable& table, const uint16_t* group, uint8_t* codes, uint8_t* scale,
                   WeightLoss* loss) {
  const int chosen = ChooseScale(table, group);
  *scale = static_cast<uint8_t>(chosen);
  std::array<uint8_t, kMxGroup> wanted;
  for (size_t i = 0; i < kMxGroup; ++i) {
    const uint8_t code = table.CodeOf(group[i], chosen);
    wanted[i] = static_cast<uint8_t>(code | (code != 0 && group[i] >> 15 != 0 ? 8 : 0));
  }
  for (size_t i = 0; i < kMxGroup; i += 2) {
    codes[i / 2] = static_cast<uint8_t>(wanted[i] | wanted[i + 1] << 4);
  }
  std::array<float, kMxGroup> decoded;
  BestKernels().decode({WeightFormat::kMXFP4, 1, kMxGroup, codes, scale}, decoded.data());
  bool same = true;
  for (size_t i = 0; i < kMxGroup; ++i) {
    same = same && decoded[i] == kE2M1[wanted[i]] * kE8M0[*scale];
    const double weight = ValueOf(group[i]);
    const double difference = double{decoded[i]} - weight;
    loss->Add({difference * difference, weight * weight});
  }
  return same;
}

}  // namespace

uint64_t Mxfp4Bytes(const BF16Matrix& matrix) {
  const uint64_t elements = uint64_t{matrix.rows} * matrix.cols;
  return elements / 2 + elements / kMxGroup;
}

std::optional<WeightLoss> QuantizeMxfp4(const BF16Matrix& matrix, ThreadPool& pool, uint8_t* out) {
  THIMBLE_CHECK(matrix.cols > 0 && matrix.cols % kMxGroup == 0);
  static const CodeTable table;
  uint8_t* scales = out + matrix.rows * matrix.cols / 2;
  std::vector<WeightLoss> losses(matrix.rows);  // added up in order, whoever made them
  std::atomic<bool> same = true;
  pool.ParallelFor(matrix.rows, std::max<size_t>(1, kGrain / matrix.cols), [&](const Range& rows) {
    for (size_t row = rows.first; row < rows.last; ++row) {
      for (size_t col = 0; col < matrix.cols; col += kMxGroup) {
        const size_t at = row * matrix.cols + col;
        if (!QuantizeGroup(table, matrix.elements + at, out + at / 2, scales + at / kMxGroup,
                           &losses[row])) {
          same = false;
        }
      }
    }
  });
  if (!same) return std::nullopt;
  WeightLoss sum;
  for (const WeightLoss& loss : losses) sum.Add(loss);
  return sum;
}

}  // namespace thimble
