#pragma once

#include <bit>
#include <cstdint>

namespace thimble {

/// The value of a BF16 number: the upper half of a float32.
constexpr float FloatOfBF16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

}  // namespace thimble
