// Rows of a weight matrix in each stored format, as groups of 32 elements decoded to float32.
//
// A type of rows starts at a row and a group of it, and offers
//   Load(r, g, p, even, odd)  of group g (from there on) of the r-th row (from there on), elements
//                             2l and 2l + 1, for each lane l of the compile-time part p;
//   NextGroup()               goes on to the next group (but for Q8Rows, see Q8Tile);
//   PrefetchShare<kRows>()    asks for memory of the rows from here on (PrefetchLines), for each
//                             call as many bytes as kRows rows have in a group, and goes on behind
//                             them.
// The formats whose rows may end in a short group can also be made from a PaddedGroup.
// Compiled once for each SIMD target.

#if defined(THIMBLE_KERNELS_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_KERNELS_ROWS_INL_H_
#undef THIMBLE_KERNELS_ROWS_INL_H_
#else
#define THIMBLE_KERNELS_ROWS_INL_H_
#endif

#include "base/bf16.h"
#include "base/checked_math.h"
#include "codec/weight_matrix.h"
#include "kernels/lanes-inl.h"
#include "kernels/mxfp4.h"

HWY_BEFORE_NAMESPACE();
namespace thimble {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kGroup = 32;

constexpr size_t kCacheLine = 64;

/// Asks for a line of memory, into the second cache. An address is a number, since it may lie
/// beyond what is there, which a prefetch forgives and pointer arithmetic does not.
HWY_INLINE void PrefetchLine(uintptr_t address) {
  __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 2);
}

/// Asks for kBytes of memory that will be used some tiles of rows later. Several rows are read at
/// once, which is more streams than hardware prefetchers follow well; what comes next lies in one
/// piece and is asked for in order. It waits in the second-level cache, since a tile of rows whose
/// length is a power of two would evict its own beginning from the first.
template <size_t kBytes>
HWY_INLINE void PrefetchLines(const uint8_t* p) {
  const auto first = reinterpret_cast<uintptr_t>(p);
  Unroll<(kBytes + kCacheLine - 1) / kCacheLine>(
      [&](auto line) THIMBLE_INLINE_LAMBDA { PrefetchLine(first + line * kCacheLine); });
}

/// How far behind the rows in use memory is asked for: in whole tiles of kRows rows, and far enough
/// that it is there in time, which one tile of short rows is not.
template <size_t kRows>
HWY_INLINE size_t RowsAhead(size_t row_bytes) {
  constexpr size_t kBytesAhead = 24576;
  return kRows * CeilDiv(kBytesAhead, kRows * row_bytes);
}

/// Makes the compiler address a few rows from one pointer and their stride; a pointer for each row
/// would exceed the registers.
HWY_INLINE void KeepOnePointer(const uint8_t*& p) { asm("" : "+r"(p)); }

/// kVector words from any address.
HWY_INLINE U LoadWords(const uint8_t* p) {
#if HWY_TARGET == HWY_SCALAR
  uint32_t word;
  std::memcpy(&word, p, sizeof(word));
  return hn::Set(kU, word);
#else
  return hn::BitCast(kU, hn::LoadU(hn::Repartition<uint8_t, decltype(kU)>(), p));
#endif
}

/// kVector BF16 elements from any address, widened in their natural order.
HWY_INLINE V LoadBF16(const uint8_t* p) {
  uint16_t halves[kVector];
  std::memcpy(halves, p, sizeof(halves));
  const hn::Rebind<uint16_t, decltype(kU)> narrow;
  return hn::BitCast(kF, hn::ShiftLeft<16>(hn::PromoteTo(kU, hn::LoadU(narrow, halves))));
}

HWY_INLINE V LoadF32(const uint8_t* p) { return hn::BitCast(kF, LoadWords(p)); }

/// A copy of the last elements of a row, padded with zeros, since nothing may be read behind them.
struct PaddedGroup {
  uint8_t bytes[kGroup * sizeof(float)] = {};
  PaddedGroup(const uint8_t* p, size_t num_bytes) { std::memcpy(bytes, p, num_bytes); }
};

/// The elements of a word. It holds an even element below an odd one: this is why products are
/// summed in pairs.
HWY_INLINE void SplitWords(U words, V& even, V& odd) {
  even = hn::BitCast(kF, hn::ShiftLeft<16>(words));
  odd = hn::BitCast(kF, hn::And(words, hn::Set(kU, 0xffff0000u)));
}

/// Rows of elements of kBytes each, as both types of them have it.
template <size_t kBytes>
struct PlainRows {
  static constexpr bool kWholeGroups = false;
  static constexpr size_t kElementBytes = kBytes;
  const uint8_t* data;
  size_t stride;

  PlainRows(const WeightMatrix& w, size_t row)
      : data(w.data + row * w.cols * kBytes), stride(w.cols * kBytes) {}
  explicit PlainRows(const PaddedGroup& group) : data(group.bytes), stride(0) {}

  HWY_INLINE void NextGroup() {
    data += kGroup * kBytes;
    KeepOnePointer(data);
  }
  template <size_t kRows>
  HWY_INLINE void PrefetchShare() {
    constexpr size_t kShare = kRows * kGroup * kBytes;
    PrefetchLines<kShare>(data);
    data += kShare;
  }
};

struct BF16Rows : PlainRows<2> {
  using PlainRows::PlainRows;

  template <class Part>
  HWY_INLINE void Load(size_t r, size_t g, Part p, V& even, V& odd) const {
    const size_t at = g * kGroup * kElementBytes + p * kVector * sizeof(uint32_t);
    U words = LoadWords(data + r * stride + at);
    KeepInRegister(words);
    SplitWords(words, even, odd);
  }

  static HWY_INLINE V LoadNatural(const uint8_t* p) { return LoadBF16(p); }
};

struct F32Rows : PlainRows<4> {
  using PlainRows::PlainRows;

  template <class Part>
  HWY_INLINE void Load(size_t r, size_t g, Part p, V& even, V& odd) const {
    const uint8_t* from = data + r * stride + (g * kGroup + p * 2 * kVector) * kElementBytes;
    const V low = LoadF32(from);
    const V high = LoadF32(from + kVector * kElementBytes);
#if HWY_TARGET == HWY_SCALAR
    even = low;
    odd = high;
#else
    even = hn::ConcatEven(kF, high, low);
    odd = hn::ConcatOdd(kF, high, low);
#endif
  }

  static HWY_INLINE V LoadNatural(const uint8_t* p) { return LoadF32(p); }
};

struct MxRows {
  static constexpr bool kWholeGroups = true;
  const uint8_t* codes;
  const uint8_t* scales;
  size_t code_stride;
  size_t scale_stride;

  MxRows(const WeightMatrix& w, size_t row)
      : codes(w.data + row * (w.cols / 2)),
        scales(w.scales + row * (w.cols / kMxGroup)),
        code_stride(w.cols / 2),
        scale_stride(w.cols / kMxGroup) {}

  HWY_INLINE void AdvanceCodes(size_t groups) {
    codes += groups * (kGroup / 2);
    KeepOnePointer(codes);
  }
  HWY_INLINE void AdvanceScales(size_t groups) {
    scales += groups;
    KeepOnePointer(scales);
  }
  HWY_INLINE void NextGroup() {
    AdvanceCodes(1);
    AdvanceScales(1);
  }
  template <size_t kRows>
  HWY_INLINE void PrefetchShare() {
    PrefetchLines<kRows * kGroup / 2>(codes);
    PrefetchLines<kRows>(scales);
    codes += kRows * kGroup / 2;
    scales += kRows;
  }

  template <class Part>
  HWY_INLINE void Load(size_t r, size_t g, Part p, V& even, V& odd) const {
    const hn::Rebind<uint8_t, decltype(kU)> narrow;
    const uint8_t* from = codes + r * code_stride + g * (kGroup / 2) + p * kVector;
    U pairs = hn::PromoteTo(kU, hn::LoadU(narrow, from));
    KeepInRegister(pairs);
    const size_t scale = scales[r * scale_stride + g];
#if THIMBLE_AVX512 || HWY_TARGET == HWY_AVX2
    V scaled = hn::LoadU(kF, kScaledE2M1[scale].data());
    KeepInRegister(scaled);
#else
    const V scaled = hn::Set(kF, kE8M0[scale]);
#endif
    even = Decode(pairs, scaled);
    odd = Decode(hn::ShiftRight<4>(pairs), scaled);
  }

  /// Value of the code in the low four bits of each lane, times the scale: exact. `scaled` is the
  /// table of such products where the target has lookups, else the scale.
  static HWY_INLINE V Decode(U codes, V scaled) {
#if THIMBLE_AVX512
    // The instruction ignores all but four bits of an index; Highway's wrapper would demand zeros.
    return V{_mm512_permutexvar_ps(codes.raw, scaled.raw)};
#elif HWY_TARGET == HWY_AVX2
    const U index = hn::And(codes, hn::Set(kU, 7u));
    const V magnitude = hn::TableLookupLanes(scaled, hn::IndicesFromVec(kF, index));
    const U sign = hn::And(hn::ShiftLeft<28>(codes), hn::Set(kU, 0x80000000u));
    return hn::Or(magnitude, hn::BitCast(kF, sign));
#else
    // Exponent and fraction moved to where float32 has them are off by a factor of 2^126.
    const U magnitude = hn::ShiftLeft<22>(hn::And(codes, hn::Set(kU, 7u)));
    const U sign = hn::And(hn::ShiftLeft<28>(codes), hn::Set(kU, 0x80000000u));
    const V value = hn::BitCast(kF, hn::Or(magnitude, sign));
    return hn::Mul(hn::Mul(value, hn::Set(kF, 0x1p126f)), scaled);
#endif
  }
};

#if HWY_TARGET == HWY_AVX3_DL

/// Groups of an MXFP4 row that are unpacked together: as many as fill a vector with codes.
constexpr size_t kMxRun = 4;

/// The codes of a run of one row. Lane l holds byte l of each group, in the order 0, 2, 1, 3, so
/// that the codes of the groups that come next lie where lookups take their indices from: at bit 0
/// those of one group, at bit 16 those of the other.
struct MxRun {
  U codes;

  HWY_INLINE void Fill(const MxRows& rows, size_t r) {
    static constexpr auto kOrder = [] {
      std::array<uint8_t, kMxRun * kLanes> from{};
      for (size_t i = 0; i < from.size(); ++i) {
        const size_t group = i % 4 / 2 + i % 2 * 2;
        from[i] = static_cast<uint8_t>(group * kLanes + i / kMxRun);
      }
      return from;
    }();
    const __m512i bytes = _mm512_loadu_si512(rows.codes + r * rows.code_stride);
    codes.raw = _mm512_permutexvar_epi8(_mm512_loadu_si512(kOrder.data()), bytes);
    KeepInRegister(codes);
  }

  /// Takes the next two groups, whose scales are given.
  HWY_INLINE void TakePair(const uint8_t* scales, V (&even)[2], V (&odd)[2]) {
    constexpr __mmask32 kUpperHalves = 0xaaaaaaaa;
    const __m512 floats = _mm512_load_ps(kScaledE2M1[scales[0]].data());
    const __m512i halves = _mm512_load_si512(kScaledE2M1AsBF16[scales[1]].data());
    const auto lookup = [&](U at, V(&values)[2]) THIMBLE_INLINE_LAMBDA {
      values[0].raw = _mm512_permutexvar_ps(at.raw, floats);
      values[1].raw =
          _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(kUpperHalves, at.raw, halves));
    };
    const U odd_codes = hn::ShiftRight<4>(codes);
    lookup(codes, even);
    lookup(odd_codes, odd);
    codes = hn::ShiftRight<4>(odd_codes);
  }
};

#endif

/// (a & b) ^ c.
HWY_INLINE U AndXor(U a, U b, U c) {
#if THIMBLE_AVX512
  return U{_mm512_ternarylogic_epi32(a.raw, b.raw, c.raw, 0x6a)};
#else
  return hn::Xor(hn::And(a, b), c);
#endif
}

/// v times the number at p. On Zen 4 a broadcast into a register costs time of the multiply-adds.
HWY_INLINE V MulByScalar(V v, const float* p) {
#if THIMBLE_AVX512
  asm("vmulps %1%{1to16%}, %0, %0" : "+v"(v.raw) : "m"(*p));
  return v;
#else
  return hn::Mul(v, hn::Set(kF, *p));
#endif
}

/// Groups whose scales are widened at once (Q8Tile).
constexpr size_t kQ8Run = 16;

struct Q8Rows {
  static constexpr bool kWholeGroups = true;
  const uint8_t* codes;
  const uint8_t* scales;
  size_t stride;

  Q8Rows(const WeightMatrix& w, size_t row)
      : codes(w.data + row * Q8RowBytes(w.cols)),
        scales(codes + w.cols),
        stride(Q8RowBytes(w.cols)) {}

  template <size_t kRows>
  HWY_INLINE void PrefetchShare() {
    constexpr size_t kShare = kRows * (kGroup + sizeof(uint16_t));
    PrefetchLines<kShare>(codes);
    codes += kShare;
  }

  /// Writes the scales of `count` groups of row r from group g on.
  HWY_INLINE void Widen(size_t r, size_t g, size_t count, float* out) const {
    const uint8_t* from = scales + r * stride + g * sizeof(uint16_t);
    size_t i = 0;
    for (; i + kVector <= count; i += kVector) {
      hn::StoreU(LoadBF16(from + i * sizeof(uint16_t)), kF, out + i);
    }
    for (; i < count; ++i) {
      uint16_t half;
      std::memcpy(&half, from + i * sizeof(half), sizeof(half));
      out[i] = FloatOfBF16(half);
    }
  }

  template <class Part>
  HWY_INLINE void Load(size_t r, size_t g, Part p, V& even, V& odd) const {
    float scale;
    Widen(r, g, 1, &scale);
    Decode(codes + r * stride + g * kGroup, p, &scale, even, odd);
  }

  /// Eight bits times the eight of a BF16 fraction: the products are exact.
  template <class Part>
  static HWY_INLINE void Decode(const uint8_t* group, Part p, const float* scale, V& even, V& odd) {
    const hn::Rebind<uint16_t, decltype(kU)> narrow;
    uint16_t pairs[kVector];
    std::memcpy(pairs, group + p * sizeof(pairs), sizeof(pairs));
    U words = hn::PromoteTo(kU, hn::LoadU(narrow, pairs));
    KeepInRegister(words);
    // A code plus 128, put into the fraction of 2^23 and of 2^15 where its lowest bit is worth one.
    const U low = AndXor(words, hn::Set(kU, 0x00ffu), hn::Set(kU, 0x4b000080u));
    const U high = AndXor(words, hn::Set(kU, 0xff00u), hn::Set(kU, 0x47008000u));
    even = MulByScalar(hn::Sub(hn::BitCast(kF, low), hn::Set(kF, 0x1p23f + 128)), scale);
    odd = MulByScalar(hn::Sub(hn::BitCast(kF, high), hn::Set(kF, 0x1p15f + 128)), scale);
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
