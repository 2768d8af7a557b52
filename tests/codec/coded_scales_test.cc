#include "codec/coded_scales.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace thimble {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t kBlockHead = 4;

Bytes Coded(const Bytes& scales) {
  Bytes coded;
  AppendCodedScales(scales, &coded);
  return coded;
}

bool Decodes(const Bytes& coded, size_t count) {
  Bytes scales(count);
  return DecodeScales(coded, scales);
}

// Codes and decodes `scales`, and returns how many bytes that took.
size_t RoundTrip(const Bytes& scales) {
  const Bytes coded = Coded(scales);
  Bytes decoded(scales.size(), 0xa5);
  EXPECT_TRUE(DecodeScales(coded, decoded));
  EXPECT_TRUE(decoded == scales);
  return coded.size();
}

// Scales that are one of `values`, each as likely as its weight says.
Bytes Drawn(size_t count, const Bytes& values, const std::vector<double>& weights, int seed = 1) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::discrete_distribution<size_t> draw(weights.begin(), weights.end());
  Bytes scales(count);
  for (uint8_t& scale : scales) scale = values[draw(random)];
  return scales;
}

// Lengths within a byte of codes, within a block, at its ends, and of several blocks.
std::vector<size_t> Lengths() {
  std::vector<size_t> lengths;
  for (size_t n = 0; n < 40; ++n) lengths.push_back(n);
  for (const size_t near : {kScaleBlock, 2 * kScaleBlock}) {
    for (size_t n = near - 9; n < near + 10; ++n) lengths.push_back(n);
  }
  lengths.push_back(5 * kScaleBlock + 777);
  return lengths;
}

TEST(CodedScales, AnyLengthOfAnyStatisticsComesBack) {
  for (const size_t n : Lengths()) {
    SCOPED_TRACE(n);
    RoundTrip(Bytes(n, 120));
    RoundTrip(Drawn(n, {121, 120}, {5, 1}));
    RoundTrip(Drawn(n, {0, 254, 7}, {100, 10, 1}));
    RoundTrip(Drawn(n, {118, 119, 120, 121}, {1, 1, 1, 1}));
    RoundTrip(Drawn(n, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17},
                    std::vector<double>(17, 1)));
    Bytes all(256);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i);
    RoundTrip(Drawn(n, all, std::vector<double>(256, 1)));
  }
}

TEST(CodedScales, AnExceptionMayLieAnywhere) {
  constexpr size_t kCount = 1100;
  for (size_t at = 0; at < kCount; ++at) {
    Bytes scales(kCount, 120);
    for (size_t i = 0; i < kCount; i += 2) scales[i] = 121;
    scales[at] = 3;
    RoundTrip(scales);
    scales[kCount - 1 - at] = 4;
    RoundTrip(scales);
  }
  for (const size_t at : {size_t{0}, kScaleBlock - 1, kScaleBlock, 2 * kScaleBlock - 1}) {
    Bytes scales(2 * kScaleBlock, 120);
    scales[at] = 3;
    RoundTrip(scales);
  }
}

TEST(CodedScales, TheNumberOfBitsFollowsTheStatistics) {
  constexpr size_t kHeadsBytes = 2 * kBlockHead;
  constexpr size_t kCount = 2 * kScaleBlock;
  EXPECT_EQ(RoundTrip(Bytes(kCount, 120)), kHeadsBytes + 2 * 2 + kCount / 8);
  EXPECT_EQ(RoundTrip(Drawn(kCount, {120, 121}, {1, 1})), kHeadsBytes + 2 * 2 + kCount / 8);
  EXPECT_EQ(RoundTrip(Drawn(kCount, {120, 121, 122}, {1, 1, 1})), kHeadsBytes + 2 * 4 + kCount / 4);
  Bytes sixteen(16);
  for (size_t i = 0; i < 16; ++i) sixteen[i] = static_cast<uint8_t>(100 + i);
  EXPECT_EQ(RoundTrip(Drawn(kCount, sixteen, std::vector<double>(16, 1))),
            kHeadsBytes + 2 * 16 + kCount / 2);
}

// What normally distributed weights have: the shares that weight_generator.cc works out for 3,584
// inputs, and for 3,072.
TEST(CodedScales, ScalesOfNormalWeightsTakeAboutABitAndAFifth) {
  const Bytes values = {118, 119, 120, 121};
  constexpr size_t kCount = 21 * kScaleBlock;
  const auto bits = [&](const std::vector<double>& shares) {
    return 8.0 * static_cast<double>(RoundTrip(Drawn(kCount, values, shares))) / kCount;
  };
  EXPECT_NEAR(bits({0.131, 0.8632, 0.0058, 0}), 1.12, 0.02);
  EXPECT_NEAR(bits({0.062, 0.921, 0.017, 0}), 1.28, 0.02);
}

TEST(CodedScales, ScalesOfAllValuesGrow) {
  std::mt19937 random(5);
  Bytes scales(kScaleBlock);
  for (uint8_t& scale : scales) scale = static_cast<uint8_t>(random());
  EXPECT_GT(RoundTrip(scales), scales.size());
}

TEST(CodedScales, WhatIsNoCodeIsRefused) {
  Bytes scales(100, 120);
  scales[40] = scales[41] = 121;
  scales[99] = 3;
  const Bytes sound = Coded(scales);
  ASSERT_EQ(sound[0], 1);
  ASSERT_EQ(sound[2], 1);
  const auto with = [&](size_t at, int value) {
    Bytes bytes = sound;
    bytes.at(at) = static_cast<uint8_t>(value);
    return Decodes(bytes, scales.size());
  };
  EXPECT_TRUE(with(4, 7));
  for (const int bits : {0, 3, 5, 8, 255}) EXPECT_FALSE(with(0, bits));
  EXPECT_FALSE(with(0, 2));
  EXPECT_FALSE(with(1, 1));
  for (const int exceptions : {0, 2, 255}) EXPECT_FALSE(with(2, exceptions));
  EXPECT_FALSE(with(3, 1));
  EXPECT_FALSE(with(sound.size() - 2, 100));
  EXPECT_FALSE(with(sound.size() - 2, 255));
  EXPECT_FALSE(Decodes(sound, scales.size() - 1));
  EXPECT_FALSE(Decodes(sound, scales.size() + 9));
  EXPECT_FALSE(Decodes(sound, 0));
  for (size_t bytes = 0; bytes < sound.size(); ++bytes) {
    EXPECT_FALSE(Decodes({sound.begin(), sound.begin() + static_cast<std::ptrdiff_t>(bytes)},
                         scales.size()));
  }
  Bytes longer = sound;
  longer.push_back(0);
  EXPECT_FALSE(Decodes(longer, scales.size()));
}

// Under sanitizers: no byte of noise makes it read or write elsewhere.
TEST(CodedScales, NoiseIsRefusedOrDecoded) {
  std::mt19937 random(9);
  for (int round = 0; round < 20'000; ++round) {
    Bytes bytes(random() % 200);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    if (bytes.size() > 2) {
      bytes[0] = static_cast<uint8_t>(1U << random() % 3);
      bytes[1] = 0;
      bytes[2] = static_cast<uint8_t>(random() % 40);
    }
    if (bytes.size() > 3) bytes[3] = 0;
    Decodes(bytes, random() % 400);
  }
  Bytes coded = Coded(Drawn(2 * kScaleBlock + 5, {1, 2, 3}, {90, 9, 1}));
  for (int round = 0; round < 2000; ++round) {
    Bytes flipped = coded;
    flipped[random() % flipped.size()] ^= static_cast<uint8_t>(1U << random() % 8);
    Decodes(flipped, 2 * kScaleBlock + 5);
  }
}

}  // namespace
}  // namespace thimble
