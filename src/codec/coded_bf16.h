#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/checked_math.h"

/// BF16 matrices without their redundancy, and without loss (docs/CONTAINER.md, "Coded tensors").
///
/// The exponents of trained weights have few values: of 256, seven cover all but a few in a hundred
/// elements of a group of rows (for normally distributed weights 97.5 %). So a group of rows stores
/// a sign and fraction byte for each element, a three-bit code for its exponent, and the exponents
/// that have no code, in order: 11.2 bits an element instead of 16.
///
///     uint32   bytes of the group, this head included
///     uint8    1 coded, 0 plain (then rows of BF16 follow the head)
///     uint8[7] the exponents of codes 0 to 6; code 7 stands for "none of these"
///     uint32   0
///     -- where coded:
///     uint32[rows]  exponents without a code up to the end of each row
///     rows          each CodedRowBytes(cols)
///     uint8[...]    the exponents without a code
///
/// A row is cut into spans of 128 elements: 128 bytes (fewer in a short last span) of sign and
/// fraction, 32 bytes with the codes' low two bits, 16 with their high bit. Element 32 k + m of a
/// span has its low bits in byte m at bit 2 k, and its high bit in byte m mod 16 at bit 2 k, or
/// 2 k + 1 where m >= 16.
namespace thimble {

inline constexpr size_t kCodedHeadBytes = 16;
inline constexpr size_t kCodedExponents = 7;
inline constexpr size_t kCodedSpan = 128;
inline constexpr size_t kCodedLowBytes = 32;
inline constexpr size_t kCodedHighBytes = 16;
/// The longest row that is coded: the kernels hold a decoded row in their scratch.
inline constexpr size_t kMaxCodedCols = 65536;

/// Bytes of a coded row of `cols` elements, less the exponents that have no code.
constexpr size_t CodedRowBytes(size_t cols) {
  return cols + CeilDiv(cols, kCodedSpan) * (kCodedLowBytes + kCodedHighBytes);
}

/// The most bytes that a group of rows takes: plain.
constexpr uint64_t MaxCodedGroupBytes(size_t rows, size_t cols) {
  return kCodedHeadBytes + uint64_t{2} * rows * cols;
}

/// A view of a group's parts. Nothing is checked: IsSoundGroup says whether it may be used.
struct CodedGroup {
  const uint8_t* bytes;

  uint32_t total_bytes() const { return Word(0); }
  bool is_coded() const { return bytes[4] == 1; }
  const uint8_t* exponents() const { return bytes + 5; }
  /// Exponents without a code in rows before `row`.
  uint32_t EscapesBefore(size_t row) const {
    return row == 0 ? 0 : Word(kCodedHeadBytes + (row - 1) * sizeof(uint32_t));
  }
  const uint8_t* CodedRow(size_t row, size_t rows, size_t cols) const {
    return bytes + kCodedHeadBytes + rows * sizeof(uint32_t) + row * CodedRowBytes(cols);
  }
  const uint8_t* PlainRow(size_t row, size_t cols) const {
    return bytes + kCodedHeadBytes + row * cols * 2;
  }

 private:
  uint32_t Word(size_t offset) const {
    uint32_t word;
    std::memcpy(&word, bytes + offset, sizeof(word));
    return word;
  }
};

/// True where `bytes` hold exactly a group of [rows, cols] whose every part lies inside, so that
/// decoding it reads nothing else, whatever its contents.
bool IsSoundGroup(const uint8_t* bytes, uint64_t size, size_t rows, size_t cols);

/// Appends the group of `elements`, BF16 [rows, cols], coded where that is shorter, else plain.
/// `cols` is at most kMaxCodedCols.
void AppendCodedGroup(const uint16_t* elements, size_t rows, size_t cols,
                      std::vector<uint8_t>* out);

}  // namespace thimble
