// Element-wise activations and decays. Compiled once for each SIMD target.

#if defined(THIMBLE_KERNELS_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_KERNELS_ACTIVATION_INL_H_
#undef THIMBLE_KERNELS_ACTIVATION_INL_H_
#else
#define THIMBLE_KERNELS_ACTIVATION_INL_H_
#endif

#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble {
namespace HWY_NAMESPACE {
namespace {

void SigmoidKernel(const float* x, size_t n, float* y) noexcept {
  Map([](V v) THIMBLE_INLINE_LAMBDA { return Sigmoid(v); }, n, y, x);
}

void Gate(const float* gate, size_t n, float* y) noexcept {
  Map([](V g, V v) THIMBLE_INLINE_LAMBDA { return hn::Mul(v, Sigmoid(g)); }, n, y, gate, y);
}

void SiluGlu(const float* gate, const float* up, size_t n, float* y) noexcept {
  Map([](V g, V u) THIMBLE_INLINE_LAMBDA { return hn::Mul(Silu(g), u); }, n, y, gate, up);
}

/// bound * tanh(x / bound).
HWY_INLINE V SoftClip(V x, V bound) { return hn::Mul(bound, Tanh(hn::Div(x, bound))); }

void SituGlu(const float* gate, const float* up, float beta, float linear_beta, size_t n,
             float* y) noexcept {
  const V bound = Constant(beta);
  const V linear_bound = Constant(linear_beta);
  const bool clip_up = linear_beta != 0.0f;
  Map(
      [=](V g, V u) THIMBLE_INLINE_LAMBDA {
        const V activated = hn::Mul(SoftClip(g, bound), Sigmoid(g));
        return hn::Mul(activated, clip_up ? SoftClip(u, linear_bound) : u);
      },
      n, y, gate, up);
}

void DecayBounded(const float* z, const float* bias, float alpha, float bound, size_t n,
                  float* out) noexcept {
  const V slope = Constant(alpha);
  const V lowest = Constant(bound);
  Map(
      [=](V v, V b) THIMBLE_INLINE_LAMBDA {
        return Exp(hn::Mul(lowest, Sigmoid(hn::Mul(slope, hn::Add(v, b)))));
      },
      n, out, z, bias);
}

void DecaySoftplus(const float* z, const float* bias, float alpha, size_t n, float* out) noexcept {
  const V slope = Constant(-alpha);
  Map([=](V v, V b) THIMBLE_INLINE_LAMBDA { return Exp(hn::Mul(slope, Softplus(hn::Add(v, b)))); },
      n, out, z, bias);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
