// exp, sigmoid, tanh and log(1 + e^x) on float32 vectors, written out so that no libm version moves
// a bit. Relative error below 3e-7 everywhere (kernels_tests prove it); subnormal results are
// rounded, not flushed; NaN stays NaN. Each lane depends on itself alone.
// Compiled once for each SIMD target.

#if defined(THIMBLE_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_KERNELS_MATH_INL_H_
#undef THIMBLE_KERNELS_MATH_INL_H_
#else
#define THIMBLE_KERNELS_MATH_INL_H_
#endif

#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE V Constant(float value) { return hn::Set(kF, value); }

/// c[0] x^(k-1) + ... + c[k-1], by Horner's rule.
template <class... Rest>
HWY_INLINE V Polynomial(V x, float leading, Rest... rest) {
  V sum = Constant(leading);
  ((sum = hn::MulAdd(sum, x, Constant(rest))), ...);
  return sum;
}

/// 2^n for the integer n that the low bits of `biased` hold, n in [-126, 127].
HWY_INLINE V PowerOfTwo(U n) {
  return hn::BitCast(kF, hn::ShiftLeft<23>(hn::Add(n, hn::Set(kU, 127u))));
}

/// e^x; exactly 1 at 0, infinity from 88.73, 0 below -103.98.
HWY_INLINE V Exp(V x) {
  // Selected by comparison, not by Min and Max, which would lose NaN on some targets.
  const V lowest = Constant(-104.0f), highest = Constant(89.0f);
  V a = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
  a = hn::IfThenElse(hn::Gt(a, highest), highest, a);

  // e^a = 2^n e^r with |r| <= ln(2)/2. Adding 1.5 * 2^23 rounds to an integer, whose low bits then
  // are the low bits of the sum: no conversion that NaN could upset.
  const V round = Constant(12582912.0f);
  const V shifted = hn::MulAdd(a, Constant(1.44269504f), round);
  const V n = hn::Sub(shifted, round);
  // ln 2 in two parts (Cephes): n times the first is exact.
  V r = hn::MulAdd(n, Constant(-0.693359375f), a);
  r = hn::MulAdd(n, Constant(2.12194440e-4f), r);
  // Cephes expf: (e^r - 1 - r) / r^2.
  const V q = Polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                         1.6666665459e-1f, 5.0000001201e-1f);
  const V e = hn::Add(hn::MulAdd(hn::Mul(r, r), q, r), Constant(1.0f));

  // n reaches -150 and 128, beyond one exponent field: two factors, of which the first is exact.
  const U bits = hn::Sub(hn::BitCast(kU, shifted), hn::BitCast(kU, round));
  const hn::RebindToSigned<decltype(kU)> signed_tag;
  const U half = hn::BitCast(kU, hn::ShiftRight<1>(hn::BitCast(signed_tag, bits)));
  return hn::Mul(hn::Mul(e, PowerOfTwo(half)), PowerOfTwo(hn::Sub(bits, half)));
}

/// 1 / (1 + e^-x), through e^-|x| so that large negative x keep their relative accuracy.
HWY_INLINE V Sigmoid(V x) {
  const V one = Constant(1.0f);
  const V e = Exp(hn::Neg(hn::Abs(x)));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(kF)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}

HWY_INLINE V Silu(V x) { return hn::Mul(x, Sigmoid(x)); }

HWY_INLINE V Tanh(V x) {
  const V magnitude = hn::Abs(x);
  const V one = Constant(1.0f);
  // Cephes tanhf: below 0.625, 1 - 2 / (e^2x + 1) would cancel.
  const V square = hn::Mul(x, x);
  const V p = Polynomial(square, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                         1.33314422036e-1f, -3.33332819422e-1f);
  const V small = hn::MulAdd(hn::Mul(magnitude, square), p, magnitude);
  const V e = Exp(hn::Add(magnitude, magnitude));
  const V large = hn::Sub(one, hn::Div(Constant(2.0f), hn::Add(e, one)));
  return hn::CopySign(hn::IfThenElse(hn::Lt(magnitude, Constant(0.625f)), small, large), x);
}

/// log(1 + e^x) = max(x, 0) + log(1 + u), u = e^-|x| in [0, 1].
HWY_INLINE V Softplus(V x) {
  const V u = Exp(hn::Neg(hn::Abs(x)));
  // log(1 + u) = 2 artanh(s) with s = u / (2 + u) <= 1/3: the series' next term is below 2e-9.
  const V s = hn::Div(u, hn::Add(u, Constant(2.0f)));
  const V series = Polynomial(hn::Mul(s, s), 2.0f / 15, 2.0f / 13, 2.0f / 11, 2.0f / 9, 2.0f / 7,
                              2.0f / 5, 2.0f / 3, 2.0f);
  const V positive = hn::IfThenElse(hn::Gt(x, hn::Zero(kF)), x, hn::Zero(kF));
  return hn::Add(positive, hn::Mul(s, series));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
