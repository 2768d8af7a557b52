#include "kernels/latents.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kernel_test_util.h"
#include "kernels/mxfp4.h"

namespace thimble {
namespace {

constexpr LatentFormat kFormats[] = {LatentFormat::kF32, LatentFormat::kBF16, LatentFormat::kFP8};

// ---- the formats, written out

float BF16Value(const uint8_t* bytes) {
  return std::bit_cast<float>(static_cast<uint32_t>(bytes[0] << 16 | bytes[1] << 24));
}

// Sign, four bits of exponent with a bias of 7, three of fraction; exponent 0 is subnormal.
float E4M3Value(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(fraction), -9)
                              : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

std::vector<float> Decoded(const LatentShape& shape, const uint8_t* row) {
  std::vector<float> values(shape.Width());
  for (size_t i = 0; i < values.size(); ++i) {
    if (shape.format == LatentFormat::kF32) {
      std::memcpy(&values[i], row + 4 * i, sizeof(float));
    } else if (shape.format == LatentFormat::kBF16) {
      values[i] = BF16Value(row + 2 * i);
    } else {
      values[i] = E4M3Value(row[i]) * kE8M0[row[shape.Width() + (i < shape.latent ? 0 : 1)]];
    }
  }
  return values;
}

std::vector<uint8_t> Encoded(const LatentShape& shape, const float* row) {
  GuardedBuffer<uint8_t> bytes(shape.RowBytes());
  EncodeLatent(shape, row, bytes.data());
  return {bytes.begin(), bytes.end()};
}

float RoundTrip(LatentFormat format, float value) {
  const LatentShape shape = {format, 1, 0};
  return Decoded(shape, Encoded(shape, &value).data())[0];
}

TEST(LatentsTest, RowsTakeWhatTheyShould) {
  EXPECT_EQ((LatentShape{LatentFormat::kF32, 512, 64}.RowBytes()), 2304U);
  EXPECT_EQ((LatentShape{LatentFormat::kBF16, 512, 64}.RowBytes()), 1152U);
  EXPECT_EQ((LatentShape{LatentFormat::kFP8, 512, 64}.RowBytes()), 578U);
}

TEST(LatentsTest, F32IsKeptToTheBit) {
  for (const float value : {0.0F, -0.0F, 1.1F, -3e-40F, 3e38F}) {
    EXPECT_EQ(Bits(RoundTrip(LatentFormat::kF32, value)), Bits(value));
  }
}

TEST(LatentsTest, BF16RoundsToNearestTiesToEven) {
  const auto rounded = [](float value) { return RoundTrip(LatentFormat::kBF16, value); };
  EXPECT_EQ(rounded(1.0F + 0x1p-8F), 1.0F);                       // a tie, down to even
  EXPECT_EQ(rounded(1.0F + 3 * 0x1p-8F), 1.0F + 4 * 0x1p-8F);     // a tie, up to even
  EXPECT_EQ(rounded(1.0F + 0x1p-8F + 0x1p-20F), 1.0F + 0x1p-7F);  // above a tie
  EXPECT_EQ(rounded(-1.0F - 0x1p-9F), -1.0F);
  EXPECT_EQ(Bits(rounded(-0.0F)), Bits(-0.0F));
  EXPECT_TRUE(std::isnan(rounded(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(rounded(std::bit_cast<float>(0xffffffffU))));
}

// Against all E4M3 numbers, for values between, at and halfway between them.
TEST(LatentsTest, FP8TakesTheNearestCodeTiesToEven) {
  const LatentShape shape = {LatentFormat::kFP8, 2, 0};
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float low = E4M3Value(code);
    const float high = E4M3Value(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    const uint8_t even = code % 2 == 0 ? code : static_cast<uint8_t>(code + 1);
    const std::array<std::pair<float, int>, 4> cases = {
        {{low, code},
         {middle, even},
         {std::nextafter(middle, 0.0F), code},
         {std::nextafter(middle, 500.0F), code + 1}}};
    for (const auto& [value, expected] : cases) {
      for (const float sign : {1.0F, -1.0F}) {
        const float row[2] = {448.0F, sign * value};  // the first fixes the scale to 1
        const auto bytes = Encoded(shape, row);
        ASSERT_EQ(bytes[0], 0x7e);
        ASSERT_EQ(bytes[2], 127);
        ASSERT_EQ(bytes[1], expected | (sign < 0 ? 0x80 : 0)) << value;
      }
    }
  }
}

TEST(LatentsTest, FP8ScalesAreTheLeastThatHoldTheLargest) {
  const LatentShape shape = {LatentFormat::kFP8, 3, 2};
  const float row[] = {448.0F, -1.0F, 3.0F, 449.0F, 0.5F};
  const auto bytes = Encoded(shape, row);
  EXPECT_EQ(bytes[5], 127);
  EXPECT_EQ(bytes[6], 128);
  EXPECT_EQ(Decoded(shape, bytes.data())[3], 448.0F);  // 449 / 2 rounds to 224
  const float zeros[] = {0, 0, 0, 0, 0};
  for (const float value : Decoded(shape, Encoded(shape, zeros).data())) EXPECT_EQ(value, 0.0F);
}

// Half a unit of the last of three bits of fraction, over thirteen binades below the largest.
TEST(LatentsTest, ErrorsStayBelowThoseOfTheFormats) {
  const LatentShape fp8 = {LatentFormat::kFP8, 2, 0};
  for (float largest = 1e-30F; largest < 1e30F; largest *= 7.3F) {
    for (float value = largest; value > largest * 0x1p-13F; value *= 0.83F) {
      const float row[2] = {largest, value};
      EXPECT_NEAR(Decoded(fp8, Encoded(fp8, row).data())[1], value, value / 16);
      EXPECT_NEAR(RoundTrip(LatentFormat::kBF16, value), value, value / 256);
    }
  }
}

TEST(LatentsTest, WhatIsNotFiniteStaysSo) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const LatentShape shape = {LatentFormat::kFP8, 2, 1};
    const float row[] = {1, bad, 1};
    const auto values = Decoded(shape, Encoded(shape, row).data());
    EXPECT_TRUE(std::isnan(values[1]));
    EXPECT_EQ(values[2], 1.0F);
    EXPECT_FALSE(std::isfinite(RoundTrip(LatentFormat::kBF16, bad)));
  }
}

// ---- attention over stored rows

class LatentAttentionTest : public KernelTest {};

TEST_P(LatentAttentionTest, GivesTheBitsOfTheDecodedRows) {
  constexpr size_t kTokens = 2, kHeads = 3;
  for (const LatentFormat format : kFormats) {
    for (const size_t latent : Sizes{1, 16, 37, 70, 512}) {
      for (const size_t positions : Sizes{2, 63, 64, 65, 200}) {
        const LatentShape shape = {format, latent, 9};
        const Floats rows = RandomFloats(positions * shape.Width(), 2, -3.0f, 3.0f);
        const Floats q = RandomFloats(kTokens * kHeads * shape.Width(), 1);
        GuardedBuffer<uint8_t> cache(positions * shape.RowBytes());
        Floats plain(rows.size());
        for (size_t j = 0; j < positions; ++j) {
          uint8_t* row = cache.data() + j * shape.RowBytes();
          EncodeLatent(shape, rows.data() + j * shape.Width(), row);
          const auto values = Decoded(shape, row);
          std::copy(values.begin(), values.end(), plain.begin() + j * shape.Width());
        }
        Floats scratch(kAttentionBlock * shape.Width());
        Floats found(kTokens * kHeads * latent), expected(kTokens * kHeads * latent);
        MlaAttendArgs args = {.q = q.data(),
                              .num_tokens = kTokens,
                              .num_heads = kHeads,
                              .cache = cache.data(),
                              .num_positions = positions - (kTokens - 1),
                              .shape = shape,
                              .scale = 0.3f,
                              .context = found.data(),
                              .decoded = scratch.data()};
        kernels_.mla_attend(args);
        args.cache = plain.data();
        args.shape.format = LatentFormat::kF32;
        args.context = expected.data();
        args.decoded = nullptr;
        kernels_.mla_attend(args);
        ExpectSameBits(found, expected, NameOf(format));
      }
    }
  }
}

THIMBLE_INSTANTIATE_FOR_ALL_TARGETS(LatentAttentionTest);

}  // namespace
}  // namespace thimble
