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

}  // namespace thimble
