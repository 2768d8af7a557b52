// Sixteen float lanes, the width in which every striped and paired sum is taken (kernels.h), as
// one, two, four or sixteen vectors of the target; and the loops over vectors that all kernels
// share. Compiled once for each SIMD target.

#if defined(THIMBLE_KERNELS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_KERNELS_LANES_INL_H_
#undef THIMBLE_KERNELS_LANES_INL_H_
#else
#define THIMBLE_KERNELS_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"

/// Attributes of a lambda: inlined always, since vectors must never be passed through memory.
#define THIMBLE_INLINE_LAMBDA HWY_ATTR __attribute__((always_inline))

/// Targets of 512 bits; of these, AVX3_DL moves single bytes, too.
#undef THIMBLE_AVX512
#define THIMBLE_AVX512 (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL)

HWY_BEFORE_NAMESPACE();
namespace thimble {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLanes = 16;
constexpr hn::CappedTag<float, kLanes> kF;
constexpr hn::CappedTag<uint32_t, kLanes> kU;
using V = hn::Vec<hn::CappedTag<float, kLanes>>;
using U = hn::Vec<hn::CappedTag<uint32_t, kLanes>>;

/// Lanes of one vector, and vectors in sixteen lanes.
constexpr size_t kVector = hn::MaxLanes(kF);
constexpr size_t kParts = kLanes / kVector;

/// 32 vector registers instead of 16: decides how large a register tile may be.
constexpr bool kManyRegisters = THIMBLE_AVX512;

/// Calls f(0), ..., f(kCount - 1) with compile-time constants, so that arrays of vectors indexed by
/// them live in registers.
template <size_t kCount, class F>
HWY_INLINE void Unroll(F&& f) {
  [&]<size_t... i>(std::index_sequence<i...>) THIMBLE_INLINE_LAMBDA {
    (f(std::integral_constant<size_t, i>()), ...);
  }
  (std::make_index_sequence<kCount>());
}

/// Makes the compiler load v once. GCC would otherwise fold the load into each use as a memory
/// operand, and loads, not multiply-adds, would limit the matrix products.
template <class Vector>
HWY_INLINE void KeepInRegister([[maybe_unused]] Vector& v) {
#if THIMBLE_AVX512
  asm("" : "+v"(v.raw));
#elif HWY_TARGET != HWY_SCALAR
  asm("" : "+x"(v.raw));
#endif
}

/// The first n < kVector elements at p, then zeros. Reads nothing beyond them.
HWY_INLINE V LoadFirst(const float* p, size_t n) {
  float lanes[kVector] = {};
  std::memcpy(lanes, p, n * sizeof(float));
  return hn::LoadU(kF, lanes);
}

/// Stores the first n < kVector lanes.
HWY_INLINE void StoreFirst(V v, float* p, size_t n) {
  float lanes[kVector];
  hn::StoreU(v, kF, lanes);
  std::memcpy(p, lanes, n * sizeof(float));
}

/// Whole vectors, or the first `count` lanes of one.
struct WholeVectors {
  static HWY_INLINE V Load(const float* p) { return hn::LoadU(kF, p); }
  static HWY_INLINE void Store(V v, float* p) { hn::StoreU(v, kF, p); }
};
struct PartialVector {
  size_t count;
  HWY_INLINE V Load(const float* p) const { return LoadFirst(p, count); }
  HWY_INLINE void Store(V v, float* p) const { StoreFirst(v, p, count); }
};

/// y[i] = f(in[i]...) for i in [0, n), a vector at a time. y may be an input.
template <class F, class... In>
HWY_INLINE void Map(F f, size_t n, float* y, const In*... in) {
  size_t i = 0;
  for (; i + kVector <= n; i += kVector) hn::StoreU(f(hn::LoadU(kF, in + i)...), kF, y + i);
  if (i < n) StoreFirst(f(LoadFirst(in + i, n - i)...), y + i, n - i);
}

struct Lanes16 {
  V part[kParts];
};

HWY_INLINE Lanes16 ZeroLanes() {
  Lanes16 zero;
  Unroll<kParts>([&](auto p) THIMBLE_INLINE_LAMBDA { zero.part[p] = hn::Zero(kF); });
  return zero;
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE float SumOfVector(decltype(kF), V v) { return hn::GetLane(v); }
#else
template <class D>
HWY_INLINE float SumOfVector(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) == 1) {
    return hn::GetLane(v);
  } else {
    const hn::Half<D> half;
    return SumOfVector(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
#endif

/// Adds parts kCount / 2 ... kCount - 1 to those below, until one is left.
template <size_t kCount>
HWY_INLINE V SumOfParts(Lanes16& sum) {
  if constexpr (kCount > 1) {
    Unroll<kCount / 2>([&](auto p) THIMBLE_INLINE_LAMBDA {
      sum.part[p] = hn::Add(sum.part[p], sum.part[p + kCount / 2]);
    });
    return SumOfParts<kCount / 2>(sum);
  }
  return sum.part[0];
}

/// The contract's tree: for s = 8, 4, 2, 1, lane l += lane l + s.
HWY_INLINE float SumOfLanes(Lanes16 sum) { return SumOfVector(kF, SumOfParts<kParts>(sum)); }

/// A striped sum: calls step(accumulator, in[i]...) for each vector of the n elements; a short last
/// group of sixteen is continued with zeros.
template <class Step, class... In>
HWY_INLINE float StripedSum(Step step, size_t n, const In*... in) {
  Lanes16 sum = ZeroLanes();
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Unroll<kParts>([&](auto p) THIMBLE_INLINE_LAMBDA {
      sum.part[p] = step(sum.part[p], hn::LoadU(kF, in + i + p * kVector)...);
    });
  }
  if (i < n) {
    float tail[sizeof...(In)][kLanes] = {};
    size_t input = 0;
    (std::memcpy(tail[input++], in + i, (n - i) * sizeof(float)), ...);
    Unroll<kParts>([&](auto p) THIMBLE_INLINE_LAMBDA {
      [&]<size_t... k>(std::index_sequence<k...>) THIMBLE_INLINE_LAMBDA {
        sum.part[p] = step(sum.part[p], hn::LoadU(kF, tail[k] + p * kVector)...);
      }
      (std::make_index_sequence<sizeof...(In)>());
    });
  }
  return SumOfLanes(sum);
}

HWY_INLINE float Dot(const float* a, const float* b, size_t n) {
  return StripedSum([](V sum, V x, V y) THIMBLE_INLINE_LAMBDA { return hn::MulAdd(x, y, sum); }, n,
                    a, b);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
