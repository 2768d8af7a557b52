#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// E8M0 scales without their redundancy, and without loss (docs/CONTAINER.md, "Coded scales").
///
/// A scale is the power of two that fits the largest of 32 weights, and among weights of one matrix
/// few powers occur: of normally distributed ones two cover 98 %. So scales are cut into blocks of
/// kScaleBlock, and a block is
///
///     uint8           bits of a code: 1, 2 or 4
///     uint8           0
///     uint16          number of exceptions
///     uint8[2^bits]   the scale of each code
///     codes           of all scales, the first in the lowest bits, the last byte filled up
///     uint8[2] each   exceptions: scales passed over since the one before, and the scale
///
/// An exception takes the place of what its code says. Where more than 255 scales would be passed
/// over, one between is listed as an exception too.
namespace thimble {

inline constexpr size_t kScaleBlock = 16384;

/// Appends `scales` coded, each block with as many bits as make it shortest. Scales of many values
/// grow.
void AppendCodedScales(std::span<const uint8_t> scales, std::vector<uint8_t>* out);

/// Decodes exactly `out.size()` scales from exactly `coded.size()` bytes, which do not overlap.
/// False where `coded` is no such code; nothing outside the two is touched, whatever its bytes.
/// Takes about 0.1 ns a scale.
bool DecodeScales(std::span<const uint8_t> coded, std::span<uint8_t> out);

}  // namespace thimble
