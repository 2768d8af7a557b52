#include <algorithm>
#include <array>
#include <tuple>

#include "kernels/kernel_test_util.h"

namespace thimble {
namespace {

std::string FormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBF16:
      return "BF16";
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kMXFP4:
      return "MXFP4";
    case WeightFormat::kQ8:
      return "Q8";
    case WeightFormat::kCodedBF16:
      return "CodedBF16";
  }
  return "";
}

/// Activations of several tokens, natural and packed.
struct Activations {
  Activations(const Kernels& kernels, size_t num_tokens, size_t num_cols, uint32_t seed)
      : cols(num_cols),
        natural(RandomFloats(num_tokens * num_cols, seed)),
        packed(num_tokens * PackedCols(num_cols)) {
    for (size_t t = 0; t < num_tokens; ++t) {
      kernels.pack_activations(Token(t), cols, packed.data() + t * PackedCols(cols));
    }
  }
  const float* Token(size_t t) const { return natural.data() + t * cols; }

  size_t cols;
  Floats natural;
  Floats packed;
};

/// Products of tokens [first, first + count), one row of outputs for each.
Floats Multiply(const Kernels& kernels, const WeightMatrix& w, const Activations& x, size_t first,
                size_t count) {
  Floats y(count * w.rows);
  const size_t stride = PackedCols(w.cols);
  kernels.matmul({.w = w,
                  .x = x.packed.data() + first * stride,
                  .x_stride = stride,
                  .num_tokens = count,
                  .y = y.data(),
                  .y_stride = w.rows});
  return y;
}

class MatMulTest : public testing::TestWithParam<std::tuple<const Kernels*, WeightFormat>> {
 protected:
  bool HasWholeGroups() const {
    return format_ == WeightFormat::kMXFP4 || format_ == WeightFormat::kQ8;
  }
  bool Allows(size_t cols) const { return !HasWholeGroups() || cols % kMxGroup == 0; }

  const Kernels& kernels_ = *std::get<0>(GetParam());
  const WeightFormat format_ = std::get<1>(GetParam());
  const Arithmetic arithmetic_{kernels_};
};

TEST_P(MatMulTest, SumsInPairedOrder) {
  constexpr size_t kRows = 11;
  for (const size_t cols : kLengths) {
    if (!Allows(cols)) continue;
    for (const size_t num_tokens : Sizes{1, 2, 3, 4, 7}) {
      const TestMatrix w = RandomMatrix(format_, kRows, cols, 1, num_tokens % 4);
      const Activations x(kernels_, num_tokens, cols, 2);
      const Floats y = Multiply(kernels_, w.view, x, 0, num_tokens);
      for (size_t i = 0; i < y.size(); ++i) {
        const float* token = x.Token(i / kRows);
        const std::span<const float> row = w.Row(i % kRows);
        ASSERT_EQ(Bits(y[i]), Bits(PairedDot(arithmetic_, row, token)))
            << cols << " columns, " << num_tokens << " tokens, output " << i;
        const ReferenceDot exact = ExactDot(row.data(), token, cols);
        ASSERT_NEAR(y[i], exact.value, exact.tolerance);
      }
    }
  }
}

TEST_P(MatMulTest, LongRowsSumInPairedOrder) {
  // Longer than the blocks of columns that a product with many tokens is cut into, and than the
  // spans of coded rows; more rows than are read at once.
  constexpr size_t kRows = 9;
  for (const size_t cols : Sizes{1024, 1120, 1555}) {
    if (!Allows(cols)) continue;
    const TestMatrix w = RandomMatrix(format_, kRows, cols, 3);
    for (const size_t num_tokens : Sizes{1, 2, 3, 4, 9}) {
      const Activations x(kernels_, num_tokens, cols, 4);
      const Floats y = Multiply(kernels_, w.view, x, 0, num_tokens);
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_EQ(Bits(y[i]), Bits(PairedDot(arithmetic_, w.Row(i % kRows), x.Token(i / kRows))))
            << cols << " columns, " << num_tokens << " tokens, output " << i;
      }
    }
  }
}

TEST_P(MatMulTest, TokenDoesNotDependOnItsNeighbours) {
  constexpr size_t kRows = 19, kMaxTokens = 70;
  const size_t cols = HasWholeGroups() ? 96 : 101;
  const TestMatrix w = RandomMatrix(format_, kRows, cols, 5);
  const Activations x(kernels_, kMaxTokens, cols, 6);
  std::vector<float> alone;
  for (size_t t = 0; t < kMaxTokens; ++t) {
    const Floats y = Multiply(kernels_, w.view, x, t, 1);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  for (size_t count = 1; count <= kMaxTokens; ++count) {
    for (const size_t first : Sizes{size_t{0}, (kMaxTokens - count) / 2, kMaxTokens - count}) {
      const Floats y = Multiply(kernels_, w.view, x, first, count);
      ExpectSameBits(y, std::span(alone).subspan(first * kRows, count * kRows),
                     std::to_string(count) + " tokens from " + std::to_string(first));
    }
  }
}

TEST_P(MatMulTest, RowsDoNotDependOnTheirNeighbours) {
  constexpr size_t kRows = 37;
  const size_t cols = HasWholeGroups() ? 64 : 70;
  const TestMatrix w = RandomMatrix(format_, kRows, cols, 7, 1);
  for (const size_t num_tokens : Sizes{1, 3, 8}) {
    const Activations x(kernels_, num_tokens, cols, 8);
    const Floats whole = Multiply(kernels_, w.view, x, 0, num_tokens);
    for (size_t first = 0; first < kRows; first += 5) {
      for (size_t count = 1; first + count <= kRows; count += 3) {
        const Floats part = Multiply(kernels_, w.view.Rows(first, count), x, 0, num_tokens);
        for (size_t t = 0; t < num_tokens; ++t) {
          ExpectSameBits(std::span(part).subspan(t * count, count),
                         std::span(whole).subspan(t * kRows + first, count), "rows");
        }
      }
    }
  }
}

TEST_P(MatMulTest, WritesOnlyItsOutputs) {
  const TestMatrix w = RandomMatrix(format_, 5, 64, 9);
  for (const size_t num_tokens : Sizes{1, 2, 8}) {
    const Activations x(kernels_, num_tokens, 64, 10);
    Floats y(num_tokens * 9);
    std::fill(y.begin(), y.end(), 7.0f);
    kernels_.matmul({w.view, x.packed.data(), 64, num_tokens, y.data(), 9});
    for (size_t i = 0; i < y.size(); ++i) {
      if (i % 9 >= 5) {
        ASSERT_EQ(y[i], 7.0f) << i;
      }
    }
  }
}

TEST_P(MatMulTest, DecodesExactly) {
  for (const size_t cols : kLengths) {
    if (!Allows(cols)) continue;
    const TestMatrix w = RandomMatrix(format_, 3, cols, 11, 1);
    Floats out(3 * cols);
    kernels_.decode(w.view, out.data());
    ExpectSameBits(out, w.values, std::to_string(cols) + " columns");
  }
}

TEST_P(MatMulTest, TransposedSumsInSerialOrder) {
  if (HasWholeGroups() || format_ == WeightFormat::kCodedBF16)
    return;  // outside the kernel's contract
  constexpr size_t kRows = 29;
  const Floats x = RandomFloats(kRows, 12);
  for (const size_t cols : kLengths) {
    const TestMatrix w = RandomMatrix(format_, kRows, cols, 13, 1);
    Floats y(cols);
    kernels_.transposed_matvec(w.view, x.data(), y.data());
    for (size_t c = 0; c < cols; ++c) {
      float sum = 0.0f;
      for (size_t r = 0; r < kRows; ++r) sum = arithmetic_.MulAdd(x[r], w.Row(r)[c], sum);
      ASSERT_EQ(Bits(y[c]), Bits(sum)) << cols << " columns, output " << c;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, MatMulTest,
                         testing::Combine(testing::ValuesIn(AllKernels()),
                                          testing::Values(WeightFormat::kBF16, WeightFormat::kF32,
                                                          WeightFormat::kMXFP4, WeightFormat::kQ8,
                                                          WeightFormat::kCodedBF16)),
                         [](const auto& param) {
                           return std::string(std::get<0>(param.param)->simd) +
                                  FormatName(std::get<1>(param.param));
                         });

class MxTest : public KernelTest {};

TEST_P(MxTest, GivesTheBitsOfItsBF16Values) {
  constexpr size_t kRows = 13, kCols = 160;
  TestMatrix mx = RandomMatrix(WeightFormat::kMXFP4, kRows, kCols, 14);
  // Every scale from subnormal to the largest whose multiples stay finite.
  for (size_t i = 0; i < mx.scales.size(); ++i) mx.scales[i] = static_cast<uint8_t>(i * 5 % 252);
  DequantiseMx(mx);
  TestMatrix bf16(WeightFormat::kBF16, kRows, kCols, 0);
  bf16.values = mx.values;
  for (size_t i = 0; i < mx.values.size(); ++i) {
    const uint32_t bits = Bits(mx.values[i]);
    ASSERT_EQ(bits & 0xffff, 0u) << "not a BF16 value";
    const uint16_t stored = static_cast<uint16_t>(bits >> 16);
    std::memcpy(bf16.data.data() + i * 2, &stored, 2);
  }
  for (const size_t num_tokens : Sizes{1, 2, 4, 9}) {
    const Activations x(kernels_, num_tokens, kCols, 15);
    ExpectSameBits(Multiply(kernels_, mx.view, x, 0, num_tokens),
                   Multiply(kernels_, bf16.view, x, 0, num_tokens), "MXFP4 and BF16");
  }
}

TEST_P(MxTest, ScaleZeroOfAnAllZeroGroupGivesZero) {
  TestMatrix mx(WeightFormat::kMXFP4, 1, 64, 0);
  std::fill(mx.data.begin(), mx.data.end(), uint8_t{0});
  std::fill(mx.scales.begin(), mx.scales.end(), uint8_t{0});
  const Activations x(kernels_, 5, 64, 16);
  for (const size_t num_tokens : Sizes{1, 5}) {
    for (const float y : Multiply(kernels_, mx.view, x, 0, num_tokens)) EXPECT_EQ(y, 0.0f);
  }
}

TEST_P(MxTest, Scale255GivesNaN) {
  TestMatrix mx = RandomMatrix(WeightFormat::kMXFP4, 2, 64, 17);
  mx.scales[1] = 255;
  const Activations x(kernels_, 5, 64, 18);
  for (const size_t num_tokens : Sizes{1, 5}) {
    const Floats y = Multiply(kernels_, mx.view, x, 0, num_tokens);
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i % 2 == 0) << i;
  }
}

THIMBLE_INSTANTIATE_FOR_ALL_TARGETS(MxTest);

class Q8Test : public KernelTest {};

// Every code with scales of every magnitude: tiny and subnormal ones, and the largest whose
// multiples stay finite.
TEST_P(Q8Test, GivesTheBitsOfItsF32Values) {
  constexpr size_t kRows = 13, kCols = 160;
  TestMatrix q8(WeightFormat::kQ8, kRows, kCols, 1);
  for (size_t i = 0; i < q8.data.size(); ++i) q8.data[i] = static_cast<uint8_t>(i * 7);
  const std::array<uint16_t, 7> scales = {0, 0x0001, 0x0080, 0x3c81, 0x3f80, 0x4b7f, 0x7b80};
  size_t next = 0;
  DequantiseQ8(q8, [&] { return scales[next++ % scales.size()]; });
  TestMatrix f32(WeightFormat::kF32, kRows, kCols, 0);
  std::memcpy(f32.data.data(), q8.values.data(), q8.values.size() * sizeof(float));
  for (const size_t num_tokens : Sizes{1, 2, 4, 9}) {
    const Activations x(kernels_, num_tokens, kCols, 15);
    ExpectSameBits(Multiply(kernels_, q8.view, x, 0, num_tokens),
                   Multiply(kernels_, f32.view, x, 0, num_tokens), "Q8 and F32");
  }
}

THIMBLE_INSTANTIATE_FOR_ALL_TARGETS(Q8Test);

class PackTest : public KernelTest {};

TEST_P(PackTest, PutsEvenElementsBeforeOddOnes) {
  for (const size_t cols : kLengths) {
    const Floats x = RandomFloats(cols, 19);
    Floats packed(PackedCols(cols));
    kernels_.pack_activations(x.data(), cols, packed.data());
    for (size_t i = 0; i < packed.size(); ++i) {
      const size_t from = i / 32 * 32 + i % 16 * 2 + i % 32 / 16;
      ASSERT_EQ(packed[i], from < cols ? x[from] : 0.0f) << cols << " columns, element " << i;
    }
  }
}

THIMBLE_INSTANTIATE_FOR_ALL_TARGETS(PackTest);

}  // namespace
}  // namespace thimble
