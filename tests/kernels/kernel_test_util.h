#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codec/coded_bf16.h"
#include "kernels/kernels.h"

/// What the kernels' tests share: buffers that trap a read or write beyond their end, random
/// numbers, and the summation orders of kernels.h written out element by element.
namespace thimble {

/// Half a unit in the last place of 1: the relative error of one float32 rounding.
inline constexpr double kEpsilon = 0x1p-24;

/// Lengths around the widths of all targets, and those of real layers.
inline constexpr size_t kLengths[] = {1,  2,  15, 16,  17,  31,  32,  33,  48,
                                      63, 64, 96, 100, 127, 128, 576, 1000};

/// `count` elements whose last byte lies `slack` bytes before a page that cannot be touched. With
/// slack 0 their address is as unaligned as `count` makes it; odd slacks misalign the elements too,
/// which only weights (bytes) allow.
template <class T>
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t count, size_t slack = 0) : count_(count) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = count * sizeof(T) + slack;
    mapped_ = (bytes + page - 1) / page * page + page;
    void* map = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(static_cast<char*>(map) + mapped_ - page, page, PROT_NONE)) {
      std::abort();
    }
    map_ = map;
    data_ = reinterpret_cast<T*>(static_cast<char*>(map) + mapped_ - page - bytes);
  }
  GuardedBuffer(const std::vector<T>& values) : GuardedBuffer(values.size()) {
    std::copy(values.begin(), values.end(), data_);
  }
  GuardedBuffer(GuardedBuffer&& other) noexcept
      : count_(other.count_),
        mapped_(other.mapped_),
        map_(std::exchange(other.map_, nullptr)),
        data_(other.data_) {}
  GuardedBuffer& operator=(GuardedBuffer&&) = delete;
  ~GuardedBuffer() {
    if (map_ != nullptr) munmap(map_, mapped_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + count_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + count_; }

 private:
  size_t count_;
  size_t mapped_;
  void* map_;
  T* data_;
};

using Floats = GuardedBuffer<float>;
using Sizes = std::initializer_list<size_t>;

inline Floats RandomFloats(size_t count, uint32_t seed, float low = -1.0f, float high = 1.0f) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  Floats values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

inline Floats Copy(const Floats& from) {
  Floats copy(from.size());
  std::copy(from.begin(), from.end(), copy.begin());
  return copy;
}

inline uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

/// All elements equal bit for bit (so that -0 is not 0, and NaN equals itself).
inline void ExpectSameBits(std::span<const float> actual, std::span<const float> expected,
                           const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(Bits(actual[i]), Bits(expected[i]))
        << what << ", element " << i << ": " << actual[i] << " and " << expected[i];
  }
}

// ---- the arithmetic contract, element by element

/// a * b + c as the target does it.
struct Arithmetic {
  bool fused;
  explicit Arithmetic(const Kernels& kernels)
      : fused(std::string(kernels.simd).starts_with("AVX")) {}
  float MulAdd(float a, float b, float c) const {
    if (fused) return std::fma(a, b, c);
    const float product = a * b;
    return product + c;
  }
};

struct ScalarLanes {
  float lane[16] = {};
  float Sum() const {
    float sum[16];
    std::copy(std::begin(lane), std::end(lane), sum);
    for (size_t s = 8; s > 0; s /= 2) {
      for (size_t l = 0; l < s; ++l) sum[l] += sum[l + s];
    }
    return sum[0];
  }
};

inline float PairedDot(Arithmetic arithmetic, std::span<const float> w, const float* x) {
  ScalarLanes lanes;
  for (size_t i = 0; i < w.size(); ++i) {
    float& lane = lanes.lane[i % 32 / 2];
    lane = arithmetic.MulAdd(w[i], x[i], lane);
  }
  return lanes.Sum();
}

inline float StripedDot(Arithmetic arithmetic, const float* a, const float* b, size_t n) {
  ScalarLanes lanes;
  for (size_t i = 0; i < n; ++i)
    lanes.lane[i % 16] = arithmetic.MulAdd(a[i], b[i], lanes.lane[i % 16]);
  return lanes.Sum();
}

/// A sum of products in double precision, with the bound on float32's error in any order:
/// (n + 1) roundings of partial sums, each at most sum |a||b|.
struct ReferenceDot {
  double value = 0;
  double tolerance = 0;
};
inline ReferenceDot ExactDot(const float* a, const float* b, size_t n) {
  double sum = 0, norm = 0;
  for (size_t i = 0; i < n; ++i) {
    sum += double{a[i]} * b[i];
    norm += std::abs(double{a[i]} * b[i]);
  }
  return {sum, static_cast<double>(n + 1) * kEpsilon * norm};
}

// ---- weights

inline float BF16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

/// A matrix in its stored form beside its values.
struct TestMatrix {
  static constexpr size_t kCodedGroupRows = 3;
  TestMatrix(WeightFormat format, size_t rows, size_t cols, size_t slack)
      : data(WeightMatrix{format, rows, cols, nullptr, nullptr}.RowBytes() * rows, slack),
        scales(format == WeightFormat::kMXFP4 ? rows * (cols / kMxGroup) : 0, slack),
        values(rows * cols),
        view{format, rows, cols, data.data(),
             format == WeightFormat::kMXFP4 ? scales.data() : nullptr} {}
  // BF16 elements in coded groups of three rows.
  TestMatrix(const TestMatrix& plain, const std::vector<uint8_t>& coded_bytes,
             std::vector<uint32_t> ends)
      : data(coded_bytes),
        scales(0),
        values(plain.values),
        group_ends(std::move(ends)),
        view{WeightFormat::kCodedBF16,
             plain.view.rows,
             plain.view.cols,
             data.data(),
             nullptr,
             {group_ends.data(), kCodedGroupRows, plain.view.rows}} {}
  std::span<const float> Row(size_t row) const {
    return std::span(values).subspan(row * view.cols, view.cols);
  }

  GuardedBuffer<uint8_t> data;
  GuardedBuffer<uint8_t> scales;
  std::vector<float> values;
  std::vector<uint32_t> group_ends;
  WeightMatrix view;
};

/// The same BF16 matrix in coded groups.
inline TestMatrix Coded(const TestMatrix& plain) {
  std::vector<uint8_t> bytes;
  std::vector<uint32_t> ends;
  const size_t rows = plain.view.rows, cols = plain.view.cols;
  std::vector<uint16_t> elements(rows * cols);
  std::memcpy(elements.data(), plain.view.data, elements.size() * 2);
  for (size_t row = 0; row < rows; row += TestMatrix::kCodedGroupRows) {
    const size_t count = std::min(TestMatrix::kCodedGroupRows, rows - row);
    AppendCodedGroup(elements.data() + row * cols, count, cols, &bytes);
    ends.push_back(static_cast<uint32_t>(bytes.size()));
  }
  return TestMatrix(plain, bytes, std::move(ends));
}

/// Recomputes `values` of an MXFP4 matrix from its codes and scales, straight from the OCP text.
inline void DequantiseMx(TestMatrix& matrix) {
  static constexpr float kMagnitude[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    const uint8_t pair = matrix.data[i / 2];
    const int code = i % 2 == 0 ? pair & 15 : pair >> 4;
    const float value = std::ldexp(kMagnitude[code & 7], matrix.scales[i / kMxGroup] - 127);
    matrix.values[i] = code & 8 ? -value : value;
  }
}

/// Puts the scales of `next_scale` into a Q8 matrix and recomputes `values` in double precision,
/// element by element: the codes of a row, then a BF16 scale for each 32.
template <typename NextScale>
void DequantiseQ8(TestMatrix& matrix, const NextScale& next_scale) {
  const size_t cols = matrix.view.cols;
  for (size_t row = 0; row < matrix.view.rows; ++row) {
    uint8_t* codes = matrix.data.data() + row * (cols + cols / 16);
    for (size_t group = 0; group < cols / 32; ++group) {
      const uint16_t scale = next_scale();
      std::memcpy(codes + cols + 2 * group, &scale, sizeof(scale));
      for (size_t i = 32 * group; i < 32 * group + 32; ++i) {
        const double code = codes[i] < 128 ? codes[i] : codes[i] - 256;
        matrix.values[row * cols + i] = static_cast<float>(code * double{BF16ToFloat(scale)});
      }
    }
  }
}

inline TestMatrix RandomMatrix(WeightFormat format, size_t rows, size_t cols, uint32_t seed,
                               size_t slack = 0) {
  if (format == WeightFormat::kCodedBF16) {
    return Coded(RandomMatrix(WeightFormat::kBF16, rows, cols, seed, slack));
  }
  TestMatrix matrix(format, rows, cols, slack);
  std::mt19937 random(seed);
  if (format == WeightFormat::kQ8) {
    for (uint8_t& byte : matrix.data) byte = static_cast<uint8_t>(random());
    DequantiseQ8(matrix, [&] { return static_cast<uint16_t>(0x3a00 + random() % 0x100); });
    return matrix;
  }
  if (format == WeightFormat::kMXFP4) {
    for (uint8_t& byte : matrix.data) byte = static_cast<uint8_t>(random());
    for (uint8_t& scale : matrix.scales) scale = static_cast<uint8_t>(118 + random() % 8);
    DequantiseMx(matrix);
    return matrix;
  }
  std::normal_distribution<float> normal(0.0f, 0.05f);
  const size_t element_bytes = format == WeightFormat::kBF16 ? 2 : 4;
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    uint32_t bits = Bits(normal(random));
    if (format == WeightFormat::kBF16) bits &= 0xffff0000u;
    matrix.values[i] = std::bit_cast<float>(bits);
    const uint32_t stored = format == WeightFormat::kBF16 ? bits >> 16 : bits;
    std::memcpy(matrix.data.data() + i * element_bytes, &stored, element_bytes);
  }
  return matrix;
}

// ---- parametrisation over the targets

class KernelTest : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels_ = *GetParam();
  const Arithmetic arithmetic_{kernels_};
};

inline std::string KernelsName(const testing::TestParamInfo<const Kernels*>& info) {
  return info.param->simd;
}

}  // namespace thimble

#define THIMBLE_INSTANTIATE_FOR_ALL_TARGETS(suite)                                       \
  INSTANTIATE_TEST_SUITE_P(Targets, suite, ::testing::ValuesIn(::thimble::AllKernels()), \
                           ::thimble::KernelsName)
