// Decodes BF16 rows that are stored without their redundancy (base/coded_bf16.h). Compiled once for
// each SIMD target.

#if defined(THIMBLE_KERNELS_CODED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_KERNELS_CODED_INL_H_
#undef THIMBLE_KERNELS_CODED_INL_H_
#else
#define THIMBLE_KERNELS_CODED_INL_H_
#endif

#include <algorithm>
#include <bit>

#include "base/coded_bf16.h"
#include "base/weight_matrix.h"
#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble {
namespace HWY_NAMESPACE {
namespace {

/// The exponents of a group as the bytes of a BF16 element that they make up; code 7 gives zeros.
struct ExponentTable {
  alignas(16) uint8_t high[16] = {};  // bits 7 to 1
  alignas(16) uint8_t low[16] = {};   // bit 0, in bit 7

  explicit ExponentTable(const uint8_t* exponents) {
    for (size_t code = 0; code < kCodedExponents; ++code) {
      high[code] = static_cast<uint8_t>(exponents[code] >> 1);
      low[code] = static_cast<uint8_t>(exponents[code] << 7);
    }
  }
};

/// The exponents without a code that a row may use.
struct Escapes {
  const uint8_t* next;
  const uint8_t* end;

  /// Writes them to the elements that `mask` names. A damaged row runs out of them, and its
  /// elements stay without an exponent.
  HWY_INLINE void Patch(uint64_t mask, uint16_t* out) {
    for (; mask != 0 && next < end; mask &= mask - 1) {
      const int at = std::countr_zero(mask);
      out[at] = static_cast<uint16_t>(out[at] | *next++ << 7);
    }
  }
};

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void DecodeSpan(const ExponentTable& table, const uint8_t* span, size_t count,
                           Escapes& escapes, uint16_t* out) {
  const uint8_t* low_bits = span + count;
  const uint8_t* high_bits = low_bits + kCodedLowBytes;
  for (size_t i = 0; i < count; ++i) {
    const size_t shift = i / kCodedLowBytes * 2, lane = i % kCodedLowBytes;
    const int low = low_bits[lane] >> shift & 3;
    const int high = high_bits[lane % kCodedHighBytes] >> (shift + lane / kCodedHighBytes) & 1;
    const int code = low | high << 2;
    out[i] = static_cast<uint16_t>(((span[i] & 0x80) | table.high[code]) << 8 |
                                   ((span[i] & 0x7f) | table.low[code]));
    if (code == kCodedExponents) escapes.Patch(1, out + i);
  }
}

#else

/// Elements decoded at once. A span has four runs of 32, whose codes share bytes.
constexpr size_t kRun = kCodedLowBytes;
constexpr hn::CappedTag<uint8_t, kRun> kBytes;
constexpr size_t kStep = hn::MaxLanes(kBytes);
using Bytes = hn::Vec<decltype(kBytes)>;

/// The high bits of the codes of elements [half * 16, ...) of every run, lowest run lowest.
template <class D>
HWY_INLINE hn::Vec<D> LoadHighBits(D d, const uint8_t* from, [[maybe_unused]] size_t half) {
  const hn::FixedTag<uint8_t, kCodedHighBytes> sixteen;
  const auto even = hn::LoadU(sixteen, from);
  const auto odd = hn::ShiftRight<1>(even);
  if constexpr (hn::MaxLanes(d) == kRun) {
    return hn::Combine(d, odd, even);
  } else {
    return half == 0 ? even : odd;
  }
}

/// Stores elements whose low and high bytes lie in two vectors.
template <class D>
HWY_INLINE void StoreElements(D d, hn::Vec<D> low, hn::Vec<D> high, uint16_t* to) {
  const hn::Repartition<uint16_t, D> halves;
  const auto first = hn::BitCast(halves, hn::InterleaveLower(d, low, high));
  const auto second = hn::BitCast(halves, hn::InterleaveUpper(d, low, high));
  if constexpr (hn::MaxLanes(d) == kRun) {
    hn::StoreU(hn::ConcatLowerLower(halves, second, first), halves, to);
    hn::StoreU(hn::ConcatUpperUpper(halves, second, first), halves, to + kStep / 2);
  } else {
    hn::StoreU(first, halves, to);
    hn::StoreU(second, halves, to + kStep / 2);
  }
}

/// Bit 2 kShift of each byte, moved to bit 2, alone.
template <size_t kShift>
HWY_INLINE Bytes HighBit(Bytes bits) {
  if constexpr (kShift == 0) bits = hn::ShiftLeft<2>(bits);
  if constexpr (kShift > 1) bits = hn::ShiftRight<2 * (kShift - 1)>(bits);
  return hn::And(bits, hn::Set(kBytes, 4));
}

/// Decodes a whole span.
HWY_INLINE void DecodeWhole(const ExponentTable& table, const uint8_t* fractions,
                            const uint8_t* codes, Escapes& escapes, uint16_t* out) {
  const Bytes table_high = hn::LoadDup128(kBytes, table.high);
  const Bytes table_low = hn::LoadDup128(kBytes, table.low);
  const Bytes sign = hn::Set(kBytes, 0x80);
  alignas(8) uint8_t masks[kCodedSpan / 8];
  Unroll<kRun / kStep>([&](auto half) THIMBLE_INLINE_LAMBDA {
    const Bytes low_bits = hn::LoadU(kBytes, codes + half * kStep);
    const Bytes high_bits = LoadHighBits(kBytes, codes + kCodedLowBytes, half);
    Unroll<kCodedSpan / kRun>([&](auto run) THIMBLE_INLINE_LAMBDA {
      const size_t at = run * kRun + half * kStep;
      const Bytes low = hn::And(hn::ShiftRight<2 * run>(low_bits), hn::Set(kBytes, 3));
      const Bytes code = hn::Or(low, HighBit<run>(high_bits));
      const Bytes fraction = hn::LoadU(kBytes, fractions + at);
      StoreElements(
          kBytes, hn::Or(hn::AndNot(sign, fraction), hn::TableLookupBytes(table_low, code)),
          hn::Or(hn::And(sign, fraction), hn::TableLookupBytes(table_high, code)), out + at);
      uint8_t bits[8];
      hn::StoreMaskBits(kBytes, hn::Eq(code, hn::Set(kBytes, kCodedExponents)), bits);
      std::memcpy(masks + at / 8, bits, kStep / 8);
    });
  });
  Unroll<kCodedSpan / 64>([&](auto part) THIMBLE_INLINE_LAMBDA {
    uint64_t mask;
    std::memcpy(&mask, masks + part * 8, sizeof(mask));
    escapes.Patch(mask, out + part * 64);
  });
}

HWY_INLINE void DecodeSpan(const ExponentTable& table, const uint8_t* span, size_t count,
                           Escapes& escapes, uint16_t* out) {
  if (count == kCodedSpan) {
    return DecodeWhole(table, span, span + count, escapes, out);
  }
  // Codes beyond the last element are zeros, no escapes.
  uint8_t fractions[kCodedSpan] = {};
  uint16_t elements[kCodedSpan];
  std::memcpy(fractions, span, count);
  DecodeWhole(table, fractions, span + count, escapes, elements);
  std::memcpy(out, elements, count * sizeof(uint16_t));
}

#endif

HWY_INLINE void DecodeCodedRow(const ExponentTable& table, const uint8_t* row, Escapes escapes,
                               size_t cols, uint16_t* out) {
  constexpr size_t kSpanBytes = kCodedSpan + kCodedLowBytes + kCodedHighBytes;
  for (size_t first = 0; first < cols; first += kCodedSpan, row += kSpanBytes) {
    DecodeSpan(table, row, std::min(kCodedSpan, cols - first), escapes, out + first);
  }
}

/// Rows [first, first + count) of a kCodedBF16 matrix as BF16, [count, cols].
void DecodeCoded(const WeightMatrix& w, size_t first, size_t count, uint16_t* out) noexcept {
  const CodedRows& coded = w.coded;
  for (size_t row = first; row < first + count;) {
    const size_t index = coded.GroupOf(row);
    const size_t rows = coded.RowsOfGroup(index);
    const size_t begin = coded.first_row + row - index * coded.group_rows;
    const size_t end = std::min(rows, begin + (first + count - row));
    const uint64_t start = coded.GroupStart(index);
    const CodedGroup group = {w.data + (start - coded.data_offset)};
    // Mapped weights may change after they were checked: nothing that they say of themselves
    // decides what memory is read.
    const uint8_t* group_end = group.bytes + (coded.group_ends[index] - start);
    const bool plain = group.bytes + MaxCodedGroupBytes(rows, w.cols) == group_end;
    const ExponentTable table(group.exponents());
    const uint8_t* escapes = group.CodedRow(rows, rows, w.cols);
    const auto escapes_before = [&](size_t i) {
      return escapes + std::min<ptrdiff_t>(group.EscapesBefore(i), group_end - escapes);
    };
    for (size_t i = begin; i < end; ++i, out += w.cols) {
      if (plain) {
        std::memcpy(out, group.PlainRow(i, w.cols), w.cols * sizeof(uint16_t));
        continue;
      }
      const Escapes own = {escapes_before(i), escapes_before(i + 1)};
      DecodeCodedRow(table, group.CodedRow(i, rows, w.cols), own, w.cols, out);
    }
    row += end - begin;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
