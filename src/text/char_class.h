#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace thimble {

/// A set of the character classes that the pre-tokenizer's pattern tells apart. Every code point
/// is in at least one; the empty set stands for the end of the text.
using CharClassSet = uint8_t;

constexpr CharClassSet kHan = 1 << 0;      // Script=Han (not Script_Extensions)
constexpr CharClassSet kUpper = 1 << 1;    // Lu Lt Lm Lo M, without Han
constexpr CharClassSet kLower = 1 << 2;    // Ll Lm Lo M, without Han
constexpr CharClassSet kLetter = 1 << 3;   // L
constexpr CharClassSet kNumber = 1 << 4;   // N
constexpr CharClassSet kSpace = 1 << 5;    // White_Space
constexpr CharClassSet kNewline = 1 << 6;  // \r \n
constexpr CharClassSet kOther = 1 << 7;    // neither L nor N nor White_Space

/// The classes of all code points, immutable. General categories are those of the utf8proc that is
/// linked (2.8: Unicode 15); Han and White_Space are listed here. A code point assigned later than
/// utf8proc knows is kOther unless it is Han: that can change the ids of such a character, never
/// the bytes they decode to.
class CharClassTable {
 public:
  /// The table, built on first use (a few milliseconds). Any thread.
  static const CharClassTable& Get();

  /// The classes of `code_point`, which is at most U+10FFFF. Two loads.
  CharClassSet operator[](uint32_t code_point) const {
    return pages_[page_of_[code_point >> kPageBits]][code_point & (kPageSize - 1)];
  }

 private:
  static constexpr uint32_t kPageBits = 8;
  static constexpr uint32_t kPageSize = 1 << kPageBits;
  static constexpr uint32_t kNumPages = 0x110000 / kPageSize;
  using Page = std::array<CharClassSet, kPageSize>;

  CharClassTable();

  std::array<uint16_t, kNumPages> page_of_;
  std::vector<Page> pages_;  // equal pages are stored once
};

}  // namespace thimble
