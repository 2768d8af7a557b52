#include "pack/quantize.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace thimble {
namespace {

constexpr size_t kGroup = 32;
constexpr std::array kMagnitudes = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};

uint16_t BF16(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

double ValueOf(uint16_t element) { return std::bit_cast<float>(uint32_t{element} << 16); }

struct Quantized {
  std::vector<uint8_t> bytes;
  WeightLoss loss;
};

Quantized Quantize(const std::vector<uint16_t>& elements, size_t cols, size_t threads = 1) {
  ThreadPool pool(threads);
  const BF16Matrix matrix = {elements.data(), elements.size() / cols, cols};
  Quantized result;
  result.bytes.resize(Mxfp4Bytes(matrix));
  const auto loss = QuantizeMxfp4(matrix, pool, result.bytes.data());
  EXPECT_TRUE(loss.has_value());
  result.loss = loss.value_or(WeightLoss{});
  return result;
}

uint8_t CodeAt(const std::vector<uint8_t>& bytes, size_t i) {
  return i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
}

double DecodedAt(const std::vector<uint8_t>& bytes, size_t elements, size_t i) {
  const uint8_t code = CodeAt(bytes, i);
  const int scale = bytes[elements / 2 + i / kGroup];
  return std::ldexp(code < 8 ? kMagnitudes[code] : -kMagnitudes[code - 8], scale - 127);
}

// The least squared error of a group over all scales, by trying every code.
double LeastError(const uint16_t* group) {
  double least = std::numeric_limits<double>::infinity();
  for (int scale = 0; scale < 255; ++scale) {
    double sum = 0;
    for (size_t i = 0; i < kGroup; ++i) {
      double error = std::numeric_limits<double>::infinity();
      for (const double magnitude : kMagnitudes) {
        error = std::min(
            error, std::abs(std::abs(ValueOf(group[i])) - std::ldexp(magnitude, scale - 127)));
      }
      sum += error * error;
    }
    least = std::min(least, sum);
  }
  return least;
}

std::vector<uint16_t> RandomElements(size_t count, double deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, deviation);
  std::vector<uint16_t> elements(count);
  for (uint16_t& element : elements) element = BF16(normal(random));
  return elements;
}

TEST(QuantizeTest, GroupsOfEveryMagnitudeHaveTheLeastErrorOfAllScales) {
  for (const double deviation : {1e-36, 1e-20, 0.01, 0.7, 1.0, 3e5, 1e37}) {
    const auto elements = RandomElements(16 * kGroup, deviation, 5);
    const Quantized result = Quantize(elements, 4 * kGroup);
    double total = 0;
    for (size_t group = 0; group < 16; ++group) {
      double error = 0;
      for (size_t i = group * kGroup; i < (group + 1) * kGroup; ++i) {
        error += std::pow(DecodedAt(result.bytes, elements.size(), i) - ValueOf(elements[i]), 2);
      }
      EXPECT_LE(error, LeastError(&elements[group * kGroup]) * (1 + 1e-6)) << deviation;
      total += error;
    }
    EXPECT_NEAR(result.loss.differences / total, 1, 1e-9);
    EXPECT_NEAR(result.loss.Relative(), 0.1, 0.03);
  }
}

TEST(QuantizeTest, TiesGoToTheEvenCodeAndWhatIsBeyondSixToSix) {
  std::vector<uint16_t> group(kGroup, BF16(0));
  const std::array values = {6.0, 0.25,  0.75,  1.25,  1.75,  2.5,  3.5,
                             5.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5};
  const std::array<uint8_t, values.size()> codes = {7, 0, 2, 2, 4, 4, 6, 6, 0, 10, 10, 12, 12, 14};
  for (size_t i = 0; i < values.size(); ++i) group[i] = BF16(values[i]);
  for (size_t i = values.size(); i < kGroup; ++i) group[i] = BF16(0.5);  // holds the scale at one
  const Quantized result = Quantize(group, kGroup);
  ASSERT_EQ(result.bytes.back(), 127);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(CodeAt(result.bytes, i), codes[i]) << i;
  // Many small elements are worth more than the exactness of one large one.
  std::vector<uint16_t> clipped(kGroup, BF16(0.75));
  clipped[0] = BF16(4.125);
  const Quantized half = Quantize(clipped, kGroup);
  EXPECT_EQ(half.bytes.back(), 126);
  EXPECT_EQ(CodeAt(half.bytes, 0), 7);
}

TEST(QuantizeTest, WhatMxfp4CanSayIsKept) {
  std::mt19937 random(3);
  std::vector<uint16_t> elements(8 * kGroup);
  for (size_t i = 0; i < elements.size(); ++i) {
    const double magnitude = i % kGroup == 0 ? 6.0 : kMagnitudes[random() % 8];
    elements[i] = BF16(
        std::ldexp(random() % 2 == 0 ? magnitude : -magnitude, static_cast<int>(i / kGroup) - 12));
  }
  const Quantized result = Quantize(elements, kGroup);
  EXPECT_EQ(result.loss.differences, 0.0);
  EXPECT_EQ(result.loss.Relative(), 0.0);
  for (size_t group = 0; group < 8; ++group) {
    EXPECT_EQ(result.bytes[elements.size() / 2 + group], 127 - 12 + group);
  }
}

TEST(QuantizeTest, ZerosAndTheSmallestNumbersBecomeZeros) {
  std::vector<uint16_t> elements(2 * kGroup, BF16(0));
  for (size_t i = kGroup; i < elements.size(); ++i) {
    elements[i] = static_cast<uint16_t>(i % 2 == 0 ? 0x8001 : 0x0040);  // subnormal
  }
  const Quantized result = Quantize(elements, kGroup);
  for (size_t i = 0; i < elements.size(); ++i) EXPECT_EQ(CodeAt(result.bytes, i), 0);
  EXPECT_EQ(Quantize(std::vector<uint16_t>(kGroup, BF16(0)), kGroup).loss.Relative(), 0.0);
}

TEST(QuantizeTest, ThreadsDoNotShow) {
  const auto elements = RandomElements(512 * 3 * kGroup, 0.02, 9);
  const Quantized one = Quantize(elements, 3 * kGroup);
  const Quantized four = Quantize(elements, 3 * kGroup, 4);
  EXPECT_TRUE(one.bytes == four.bytes);
  EXPECT_EQ(one.loss.differences, four.loss.differences);
  EXPECT_EQ(one.loss.weights, four.loss.weights);
}

TEST(QuantizeTest, WeightsThatAreNotFiniteShowInTheLoss) {
  std::vector<uint16_t> elements(kGroup, BF16(1));
  elements[7] = 0x7f80;
  EXPECT_FALSE(std::isfinite(Quantize(elements, kGroup).loss.weights));
  elements[7] = 0xffc1;
  EXPECT_FALSE(std::isfinite(Quantize(elements, kGroup).loss.weights));
}

// ---- eight bits

Quantized QuantizeToQ8(const std::vector<uint16_t>& elements, size_t cols, size_t threads = 1) {
  ThreadPool pool(threads);
  const BF16Matrix matrix = {elements.data(), elements.size() / cols, cols};
  Quantized result;
  result.bytes.resize(matrix.rows * (cols + cols / 16));
  const auto loss = QuantizeQ8(matrix, pool, result.bytes.data());
  EXPECT_TRUE(loss.has_value());
  result.loss = loss.value_or(WeightLoss{});
  return result;
}

double Q8Scale(const std::vector<uint8_t>& bytes, size_t cols, size_t row, size_t col) {
  const size_t at = row * (cols + cols / 16) + cols + col / kGroup * 2;
  return ValueOf(static_cast<uint16_t>(bytes[at] | bytes[at + 1] << 8));
}

TEST(QuantizeQ8Test, CodesAreTheNearestAndUseTheRangeWell) {
  constexpr size_t kCols = 4 * kGroup;
  for (const double deviation : {1e-30, 0.01, 1.0, 1e30}) {
    const auto elements = RandomElements(8 * kCols, deviation, 6);
    const Quantized result = QuantizeToQ8(elements, kCols);
    double total = 0;
    for (size_t i = 0; i < elements.size(); ++i) {
      const size_t row = i / kCols, col = i % kCols;
      const double scale = Q8Scale(result.bytes, kCols, row, col);
      const auto code = static_cast<int8_t>(result.bytes[row * (kCols + kCols / 16) + col]);
      const double weight = ValueOf(elements[i]);
      ASSERT_EQ(code, std::nearbyint(weight / scale)) << i;
      ASSERT_LE(std::abs(code), 127);
      total += std::pow(code * scale - weight, 2);
    }
    for (size_t first = 0; first < elements.size(); first += kGroup) {
      double largest = 0;
      for (size_t i = first; i < first + kGroup; ++i) {
        largest = std::max(largest, std::abs(ValueOf(elements[i])));
      }
      const double scale = Q8Scale(result.bytes, kCols, first / kCols, first % kCols);
      EXPECT_GE(scale * 127, largest * (1 - 1e-6));
      EXPECT_LE(scale * 127, largest * (1 + 1.0 / 64));
    }
    EXPECT_NEAR(result.loss.differences / total, 1, 1e-9);
    EXPECT_LT(result.loss.Relative(), 0.01);
    EXPECT_GT(result.loss.Relative(), 0.002);
  }
}

TEST(QuantizeQ8Test, ZerosStayAndWhatIsNotFiniteShows) {
  std::vector<uint16_t> elements(kGroup, BF16(0));
  EXPECT_EQ(QuantizeToQ8(elements, kGroup).bytes, std::vector<uint8_t>(kGroup + 2));
  elements[3] = 0xff80;
  EXPECT_FALSE(std::isfinite(QuantizeToQ8(elements, kGroup).loss.weights));
}

TEST(QuantizeQ8Test, ThreadsDoNotShow) {
  const auto elements = RandomElements(700 * 3 * kGroup, 0.02, 9);
  const Quantized one = QuantizeToQ8(elements, 3 * kGroup);
  const Quantized four = QuantizeToQ8(elements, 3 * kGroup, 4);
  EXPECT_TRUE(one.bytes == four.bytes);
  EXPECT_EQ(one.loss.differences, four.loss.differences);
}

}  // namespace
}  // namespace thimble
