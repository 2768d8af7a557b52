// Decodes a span of 128 elements of a coded BF16 row (codec/coded_bf16.h). Compiled once for each
// SIMD target.

#if defined(THIMBLE_KERNELS_CODED_SPAN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_KERNELS_CODED_SPAN_INL_H_
#undef THIMBLE_KERNELS_CODED_SPAN_INL_H_
#else
#define THIMBLE_KERNELS_CODED_SPAN_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <iterator>

#include "codec/coded_bf16.h"
#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_AVX3_DL

using Bytes = hn::Vec<hn::ScalableTag<uint8_t>>;

/// Half a span: as many elements as a vector has bytes.
constexpr size_t kHalfSpan = kCodedSpan / 2;

/// The exponents without a code from the next one on to those of the group's last row. A row has as
/// many as its codes ask for; where a damaged one asks for more, elements stay without an exponent.
struct Escapes {
  const uint8_t* next;
  const uint8_t* end;

  /// Those that the set bits of `mask` ask for, in the first bytes of what is returned.
  HWY_INLINE __m512i Take(uint64_t mask) {
    const size_t asked = static_cast<size_t>(std::popcount(mask));
    const auto left = static_cast<size_t>(end - next);
    if (left >= kHalfSpan) {
      const __m512i taken = _mm512_loadu_si512(next);
      next += asked;
      return taken;
    }
    const __m512i taken = _mm512_maskz_loadu_epi8((uint64_t{1} << left) - 1, next);
    next += std::min(asked, left);
    return taken;
  }
};

/// The exponents of a group, looked up by the complement of a code; code 7 gives zero.
struct ExponentTable {
  Bytes exponents;

  explicit ExponentTable(const uint8_t* of_codes) {
    uint8_t reversed[kCodedExponents + 1] = {};
    for (size_t code = 0; code < kCodedExponents; ++code) {
      reversed[kCodedExponents - code] = of_codes[code];
    }
    uint64_t table;
    std::memcpy(&table, reversed, sizeof(table));
    exponents = Bytes{_mm512_set1_epi64(static_cast<int64_t>(table))};
  }
};

/// By how many bits to shift or rotate each word of half a span to the right. Bits of neighbouring
/// bytes come along, above those that are wanted.
struct BitCounts {
  alignas(64) uint32_t of[kHalfSpan / sizeof(uint32_t)];
};

/// Low bits of the half's codes come to bits 0 and 1.
constexpr BitCounts LowBitShifts(size_t half) {
  BitCounts counts{};
  for (size_t word = 0; word < std::size(counts.of); ++word) {
    const size_t run = 2 * half + word * sizeof(uint32_t) / kCodedLowBytes;
    counts.of[word] = static_cast<uint32_t>(2 * run);
  }
  return counts;
}

/// The high bit of the half's codes comes to bit 2.
constexpr BitCounts HighBitRotations(size_t half) {
  BitCounts counts{};
  for (size_t word = 0; word < std::size(counts.of); ++word) {
    const size_t bit = 4 * half + word * sizeof(uint32_t) / kCodedHighBytes;
    counts.of[word] = static_cast<uint32_t>((bit + 30) % 32);
  }
  return counts;
}

struct ByteIndices {
  alignas(64) uint8_t of[kHalfSpan];
};

/// Which bytes of two vectors, of low bytes and of high ones, make the 32 elements from `first` on.
constexpr ByteIndices InterleaveFrom(size_t first) {
  ByteIndices bytes{};
  for (size_t i = 0; i < kHalfSpan; ++i) {
    bytes.of[i] = static_cast<uint8_t>(first + i / 2 + i % 2 * kHalfSpan);
  }
  return bytes;
}

template <class Constant>
HWY_INLINE __m512i LoadConstant(const Constant& constant) {
  return _mm512_load_si512(constant.of);
}

/// Decodes half `kHalf` of a whole span: two groups of 32 BF16 elements. The codes lie behind the
/// span's fractions.
template <size_t kHalf>
HWY_INLINE void DecodeHalf(const ExponentTable& table, const uint8_t* fractions,
                           const uint8_t* codes, Escapes& escapes, U& first, U& second) {
  static constexpr BitCounts kLow = LowBitShifts(kHalf), kHigh = HighBitRotations(kHalf);
  static constexpr ByteIndices kFirst = InterleaveFrom(0), kSecond = InterleaveFrom(32);
  const __m512i low = _mm512_srlv_epi32(
      _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes))),
      LoadConstant(kLow));
  const __m512i high = _mm512_rorv_epi32(
      _mm512_broadcast_i32x4(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + kCodedLowBytes))),
      LoadConstant(kHigh));
  // Complements, so that one test finds the codes of three ones. The bits above are anything.
  constexpr int kNotThirdSelects = 0x1b, kThirdSelectsFirst = 0xe4, kThirdSelectsSecond = 0xd8;
  const __m512i code = _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi8(3), kNotThirdSelects);
  const uint64_t escaped = _mm512_testn_epi8_mask(code, _mm512_set1_epi8(kCodedExponents));
  const __m512i exponent = _mm512_mask_expand_epi8(
      _mm512_permutexvar_epi8(code, table.exponents.raw), escaped, escapes.Take(escaped));
  const __m512i fraction = _mm512_loadu_si512(fractions + kHalf * kHalfSpan);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i high_bytes = _mm512_ternarylogic_epi32(_mm512_srli_epi16(exponent, 1), fraction,
                                                       sign, kThirdSelectsSecond);
  const __m512i low_bytes =
      _mm512_ternarylogic_epi32(_mm512_slli_epi16(exponent, 7), fraction, sign, kThirdSelectsFirst);
  first.raw = _mm512_permutex2var_epi8(low_bytes, LoadConstant(kFirst), high_bytes);
  second.raw = _mm512_permutex2var_epi8(low_bytes, LoadConstant(kSecond), high_bytes);
}

/// Decodes a whole span.
HWY_INLINE void DecodeWhole(const ExponentTable& table, const uint8_t* fractions,
                            const uint8_t* codes, Escapes& escapes, uint16_t* out) {
  Unroll<2>([&](auto half) THIMBLE_INLINE_LAMBDA {
    U first, second;
    DecodeHalf<half>(table, fractions, codes, escapes, first, second);
    _mm512_storeu_si512(out + half * kHalfSpan, first.raw);
    _mm512_storeu_si512(out + half * kHalfSpan + kHalfSpan / 2, second.raw);
  });
}

#else

/// The exponents without a code from the next one on to those of the group's last row.
struct Escapes {
  const uint8_t* next;
  const uint8_t* end;

  /// Writes them to the elements that `mask` names. Where a damaged row asks for more than there
  /// are, elements stay without an exponent.
  HWY_INLINE void Patch(uint64_t mask, uint16_t* out) {
    for (; mask != 0 && next < end; mask &= mask - 1) {
      const int at = std::countr_zero(mask);
      out[at] = static_cast<uint16_t>(out[at] | *next++ << 7);
    }
  }
};

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

#endif

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

#elif HWY_TARGET != HWY_AVX3_DL

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

#endif

#if HWY_TARGET != HWY_SCALAR

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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
