#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace thimble {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;
inline constexpr uint64_t kMB = 1'000'000;
inline constexpr uint64_t kGB = 1'000'000'000;

/// Reads a size as people write it: "1.5G" and "1.5GB" are 1.5 x 10^9 bytes, "8GiB" is 8 x 2^30;
/// K, M, G, T alike, in either case; a bare number is bytes. Nothing where it is no such size, is
/// negative, or does not fit 63 bits.
std::optional<uint64_t> ParseByteSize(std::string_view text);

/// "1.50 GB", "17.5 MB", "512 B": decimal units, three significant digits.
std::string FormatBytes(uint64_t bytes);

}  // namespace thimble
