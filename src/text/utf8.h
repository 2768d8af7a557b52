#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

/// UTF-8 by the Unicode standard, table 3-7: no overlong forms, no surrogates, nothing above
/// U+10FFFF. Pure functions; nothing here fails or allocates.
namespace thimble {

/// What the front of a byte string is.
enum class Utf8Status : uint8_t {
  kValid,     // one whole character
  kInvalid,   // bytes that no continuation can make valid
  kTruncated  // the whole input is the beginning of a character, 1 to 3 bytes
};

struct Utf8Char {
  Utf8Status status;
  /// Bytes consumed. For kInvalid this is the maximal subpart (Unicode 3.9, also what Python's
  /// errors="replace" replaces by one U+FFFD); for kTruncated it is the rest of the input.
  uint8_t length;
};

/// Looks at the front of `bytes`, which is not empty.
Utf8Char InspectUtf8(std::string_view bytes);

/// The length of the longest prefix of `bytes` made of whole valid characters. Linear; skips ASCII
/// eight bytes at a time.
size_t ValidUtf8Prefix(std::string_view bytes);

struct CodePoint {
  uint32_t value;
  uint32_t length;  // bytes, 1 to 4
};

/// The character at `p`, which must be the first byte of a valid one.
inline CodePoint DecodeValidUtf8(const char* p) {
  const auto byte = [p](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(p[i])); };
  const auto tail = [&byte](int i) { return byte(i) & 0x3f; };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | tail(1), 2};
  if (lead < 0xf0) return {(lead & 0x0f) << 12 | tail(1) << 6 | tail(2), 3};
  return {(lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4};
}

}  // namespace thimble
