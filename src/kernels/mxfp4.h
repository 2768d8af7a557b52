#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

/// The two small formats of MXFP4 (OCP Microscaling Formats 1.0) as tables of float32.
namespace thimble {

/// Value of each E2M1 code; bit 3 is the sign.
inline constexpr std::array<float, 16> kE2M1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                -2.0f, -3.0f, -4.0f, -6.0f};

/// Value of each E8M0 scale: 2^(byte - 127), of which byte 0 is subnormal in float32; 255 is NaN.
inline constexpr std::array<float, 256> kE8M0 = [] {
  std::array<float, 256> values{};
  values[0] = 0x1p-127f;
  for (uint32_t byte = 1; byte < 255; ++byte) values[byte] = std::bit_cast<float>(byte << 23);
  values[255] = std::numeric_limits<float>::quiet_NaN();
  return values;
}();

/// kE2M1[code] times kE8M0[scale], for each scale and code: exact up to the largest that float32
/// can hold.
alignas(64) inline constexpr std::array<std::array<float, 16>, 256> kScaledE2M1 = [] {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::array<std::array<float, 16>, 256> products{};
  for (size_t scale = 0; scale < 256; ++scale) {
    for (size_t code = 0; code < 16; ++code) {
      const double product = scale == 255 ? 0 : double{kE2M1[code]} * double{kE8M0[scale]};
      const bool fits = product < 0x1p128 && product > -0x1p128;
      products[scale][code] = scale == 255 ? kE8M0[255]
                              : fits       ? static_cast<float>(product)
                                           : (code < 8 ? kInfinity : -kInfinity);
    }
  }
  return products;
}();

/// The same as BF16, which holds each exactly: 16 for a code, then the same again.
inline constexpr std::array<std::array<uint16_t, 32>, 256> kScaledE2M1AsBF16 = [] {
  std::array<std::array<uint16_t, 32>, 256> halves{};
  for (size_t scale = 0; scale < 256; ++scale) {
    for (size_t i = 0; i < 32; ++i) {
      halves[scale][i] =
          static_cast<uint16_t>(std::bit_cast<uint32_t>(kScaledE2M1[scale][i % 16]) >> 16);
    }
  }
  return halves;
}();

}  // namespace thimble
