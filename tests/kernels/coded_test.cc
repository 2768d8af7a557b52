// The coded form of BF16 matrices: what is decoded is what was encoded, bit for bit, on every
// target. Products of coded matrices are tested with those of the other formats (matmul_test.cc).

#include "kernels/kernel_test_util.h"

namespace thimble {
namespace {

class CodedTest : public KernelTest {
 protected:
  // Encodes, decodes and compares elements [rows, cols].
  void ExpectRoundTrip(const std::vector<uint16_t>& elements, size_t rows, size_t cols) {
    TestMatrix plain(WeightFormat::kBF16, rows, cols, 0);
    std::memcpy(plain.data.data(), elements.data(), elements.size() * 2);
    const TestMatrix coded = Coded(plain);
    Floats out(rows * cols);
    kernels_.decode(coded.view, out.data());
    for (size_t i = 0; i < elements.size(); ++i) {
      ASSERT_EQ(Bits(out[i]), uint32_t{elements[i]} << 16)
          << rows << " x " << cols << ", element " << i;
    }
  }
};

TEST_P(CodedTest, EveryElementComesBack) {
  // All bit patterns, each 256-column row with few exponents: NaNs, infinities, zeros, denormals.
  std::vector<uint16_t> elements(65536);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<uint16_t>(i);
  ExpectRoundTrip(elements, 256, 256);
}

TEST_P(CodedTest, AnyLengthComesBack) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  for (size_t cols = 1; cols < 300; cols += 1 + cols / 7) {
    for (const size_t rows : Sizes{1, 3, 8}) {
      std::vector<uint16_t> elements(rows * cols);
      for (uint16_t& element : elements) {
        element = static_cast<uint16_t>(Bits(normal(random)) >> 16);
      }
      ExpectRoundTrip(elements, rows, cols);
    }
  }
}

TEST_P(CodedTest, DamagedRowReadsNothingElse) {
  // A sound head, and rows whose every code asks for an exponent that is not there.
  const TestMatrix good = RandomMatrix(WeightFormat::kCodedBF16, 3, 256, 6);
  std::vector<uint8_t> bytes(good.data.data(), good.data.data() + good.group_ends[0]);
  const CodedGroup group = {bytes.data()};
  ASSERT_TRUE(group.is_coded());
  const auto first_row = static_cast<size_t>(group.CodedRow(0, 3, 256) - bytes.data());
  std::fill(bytes.begin() + static_cast<ptrdiff_t>(first_row),
            bytes.begin() + static_cast<ptrdiff_t>(first_row + 3 * CodedRowBytes(256)), 0xff);
  ASSERT_TRUE(IsSoundGroup(bytes.data(), bytes.size(), 3, 256));
  const GuardedBuffer<uint8_t> guarded(bytes);
  WeightMatrix view = good.view;
  view.data = guarded.data();
  Floats out(3 * 256);
  kernels_.decode(view, out.data());
  EXPECT_EQ(Bits(out[3 * 256 - 1]) >> 31, 1u);  // the sign is there still
}

THIMBLE_INSTANTIATE_FOR_ALL_TARGETS(CodedTest);

}  // namespace
}  // namespace thimble
