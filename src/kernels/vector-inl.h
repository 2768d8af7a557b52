// Kernels over vectors: sums, scaling, norms, softmax. Compiled once for each SIMD target.

#if defined(THIMBLE_KERNELS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_KERNELS_VECTOR_INL_H_
#undef THIMBLE_KERNELS_VECTOR_INL_H_
#else
#define THIMBLE_KERNELS_VECTOR_INL_H_
#endif

#include <cmath>

#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble {
namespace HWY_NAMESPACE {
namespace {

float DotKernel(const float* a, const float* b, size_t n) noexcept { return Dot(a, b, n); }

float SumOfSquares(const float* x, size_t n) noexcept {
  return StripedSum([](V sum, V v) THIMBLE_INLINE_LAMBDA { return hn::MulAdd(v, v, sum); }, n, x);
}

void Scale(float a, const float* x, size_t n, float* y) noexcept {
  const V factor = Constant(a);
  Map([=](V v) THIMBLE_INLINE_LAMBDA { return hn::Mul(factor, v); }, n, y, x);
}

void Axpy(float a, const float* x, size_t n, float* y) noexcept {
  const V factor = Constant(a);
  Map([=](V v, V sum) THIMBLE_INLINE_LAMBDA { return hn::MulAdd(factor, v, sum); }, n, y, x, y);
}

void AddTo(const float* x, size_t n, float* y) noexcept {
  Map([](V v, V sum) THIMBLE_INLINE_LAMBDA { return hn::Add(sum, v); }, n, y, x, y);
}

void MultiplyInto(const float* x, size_t n, float* y) noexcept {
  Map([](V v, V product) THIMBLE_INLINE_LAMBDA { return hn::Mul(product, v); }, n, y, x, y);
}

bool AllFinite(const float* x, size_t n) noexcept {
  size_t i = 0;
  for (; i + kVector <= n; i += kVector) {
    if (!hn::AllTrue(kF, hn::IsFinite(hn::LoadU(kF, x + i)))) return false;
  }
  return hn::AllTrue(kF, hn::IsFinite(LoadFirst(x + i, n - i)));
}

void RmsNorm(const float* x, const float* w, float eps, size_t n, float* y) noexcept {
  const float mean = SumOfSquares(x, n) / static_cast<float>(n);
  const V factor = Constant(1.0f / std::sqrt(mean + eps));
  Map([=](V v, V weight) THIMBLE_INLINE_LAMBDA { return hn::Mul(weight, hn::Mul(v, factor)); }, n,
      y, x, w);
}

void L2Normalize(const float* x, float eps, float scale, size_t n, float* y) noexcept {
  const V factor = Constant(1.0f / std::sqrt(SumOfSquares(x, n) + eps));
  const V scales = Constant(scale);
  Map([=](V v) THIMBLE_INLINE_LAMBDA { return hn::Mul(hn::Mul(v, factor), scales); }, n, y, x);
}

/// The largest of n >= 1 elements, in whatever order: a maximum has no rounding.
HWY_INLINE float MaxOf(const float* x, size_t n) {
  V largest = Constant(x[0]);
  size_t i = 0;
  for (; i + kVector <= n; i += kVector) largest = hn::Max(largest, hn::LoadU(kF, x + i));
  float result = hn::GetLane(hn::MaxOfLanes(kF, largest));
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

/// x[i] <- e^(x[i] - largest).
HWY_INLINE void ExpBelow(float largest, size_t n, float* x) {
  const V top = Constant(largest);
  Map([=](V v) THIMBLE_INLINE_LAMBDA { return Exp(hn::Sub(v, top)); }, n, x, x);
}

void Softmax(float* x, size_t n) noexcept {
  ExpBelow(MaxOf(x, n), n, x);
  const float sum = StripedSum([](V s, V v) THIMBLE_INLINE_LAMBDA { return hn::Add(s, v); }, n, x);
  Scale(1.0f / sum, x, n, x);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
