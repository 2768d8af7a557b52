#include "codec/coded_bf16.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace thimble {
namespace {

std::vector<uint16_t> NormalElements(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<uint16_t> elements(count);
  for (uint16_t& element : elements) {
    const float value = normal(random);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    element = static_cast<uint16_t>(bits >> 16);
  }
  return elements;
}

TEST(CodedBf16Test, NormalElementsTakeSevenTenths) {
  constexpr size_t kRows = 16, kCols = 7168;
  const std::vector<uint16_t> elements = NormalElements(kRows * kCols, 1);
  std::vector<uint8_t> bytes;
  AppendCodedGroup(elements.data(), kRows, kCols, &bytes);
  const double share = static_cast<double>(bytes.size()) / (2.0 * kRows * kCols);
  EXPECT_LT(share, 0.71);
  EXPECT_GT(share, 0.69);
  EXPECT_TRUE(IsSoundGroup(bytes.data(), bytes.size(), kRows, kCols));
}

TEST(CodedBf16Test, GroupThatDoesNotShrinkStaysPlain) {
  std::mt19937 random(2);
  std::vector<uint16_t> elements(5 * 300);
  for (uint16_t& element : elements) element = static_cast<uint16_t>(random());
  std::vector<uint8_t> bytes = {9, 9};  // what is there stays
  AppendCodedGroup(elements.data(), 5, 300, &bytes);
  EXPECT_EQ(bytes.size() - 2, MaxCodedGroupBytes(5, 300));
  EXPECT_EQ(bytes[1], 9);
  const CodedGroup group = {bytes.data() + 2};
  EXPECT_FALSE(group.is_coded());
  EXPECT_EQ(std::memcmp(group.PlainRow(1, 300), elements.data() + 300, 600), 0);
  EXPECT_TRUE(IsSoundGroup(bytes.data() + 2, bytes.size() - 2, 5, 300));
}

TEST(CodedBf16Test, DamagedHeadsAreUnsound) {
  constexpr size_t kRows = 4, kCols = 256;
  const std::vector<uint16_t> elements = NormalElements(kRows * kCols, 3);
  std::vector<uint8_t> good;
  AppendCodedGroup(elements.data(), kRows, kCols, &good);
  ASSERT_TRUE(IsSoundGroup(good.data(), good.size(), kRows, kCols));
  EXPECT_FALSE(IsSoundGroup(good.data(), good.size() - 1, kRows, kCols));
  EXPECT_FALSE(IsSoundGroup(good.data(), good.size(), kRows + 1, kCols));
  EXPECT_FALSE(IsSoundGroup(good.data(), good.size(), kRows, kCols + 128));
  EXPECT_FALSE(IsSoundGroup(good.data(), 7, kRows, kCols));
  // The size, the kind, and the exponents without a code up to the end of each row.
  for (const size_t at : {size_t{0}, size_t{3}, size_t{4}, size_t{18}, size_t{23}, size_t{28}}) {
    std::vector<uint8_t> bad = good;
    bad[at] ^= 0x40;
    EXPECT_FALSE(IsSoundGroup(bad.data(), bad.size(), kRows, kCols)) << "byte " << at;
  }
}

}  // namespace
}  // namespace thimble
