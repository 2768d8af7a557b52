// Kernels of the recurrent mixer: short convolution, Kimi Delta Attention.
// Compiled once for each SIMD target.

#if defined(THIMBLE_KERNELS_KDA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_KERNELS_KDA_INL_H_
#undef THIMBLE_KERNELS_KDA_INL_H_
#else
#define THIMBLE_KERNELS_KDA_INL_H_
#endif

#include <algorithm>

#include "kernels/kernels.h"
#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble {
namespace HWY_NAMESPACE {
namespace {

// ---- short convolution

void ShortConv(const float* const* rows, const float* const* taps, size_t width, size_t n,
               float* out) noexcept {
  size_t i = 0;
  for (; i + kVector <= n; i += kVector) {
    V sum = hn::Zero(kF);
    for (size_t j = 0; j < width; ++j) {
      sum = hn::MulAdd(hn::LoadU(kF, taps[j] + i), hn::LoadU(kF, rows[j] + i), sum);
    }
    hn::StoreU(Silu(sum), kF, out + i);
  }
  if (i == n) return;
  V sum = hn::Zero(kF);
  for (size_t j = 0; j < width; ++j) {
    sum = hn::MulAdd(LoadFirst(taps[j] + i, n - i), LoadFirst(rows[j] + i, n - i), sum);
  }
  StoreFirst(Silu(sum), out + i, n - i);
}

// ---- Kimi Delta Attention

/// Vectors of value columns per tile: 64 columns of 128 keys, which stay in L1 or L2 between the
/// two passes, so that the state crosses memory once.
constexpr size_t kKdaVectors = kVector == 1 ? 4 : std::min<size_t>(4 * kParts, 8);

/// The value columns from `col` on, kVectors vectors of them. The second pass decays the state
/// again instead of storing it twice: the same product, the same bits.
template <size_t kVectors, class Access>
HWY_INLINE void KdaTile(const KdaStepArgs& args, size_t col, Access access) {
  const size_t n = args.head_dim;
  V kept[kVectors];  // S^T k of the decayed state, then beta (v - S^T k)
  V output[kVectors];
  Unroll<kVectors>([&](auto i) THIMBLE_INLINE_LAMBDA { kept[i] = output[i] = hn::Zero(kF); });
  const float* state = args.state + col;
  for (size_t key = 0; key < n; ++key, state += n) {
    const V decay = Constant(args.decay[key]);
    const V k = Constant(args.k[key]);
    Unroll<kVectors>([&](auto i) THIMBLE_INLINE_LAMBDA {
      kept[i] = hn::MulAdd(hn::Mul(decay, access.Load(state + i * kVector)), k, kept[i]);
    });
  }
  const V beta = Constant(args.beta);
  Unroll<kVectors>([&](auto i) THIMBLE_INLINE_LAMBDA {
    kept[i] = hn::Mul(beta, hn::Sub(access.Load(args.v + col + i * kVector), kept[i]));
  });
  float* updated = args.state + col;
  for (size_t key = 0; key < n; ++key, updated += n) {
    const V decay = Constant(args.decay[key]);
    const V k = Constant(args.k[key]);
    const V q = Constant(args.q[key]);
    Unroll<kVectors>([&](auto i) THIMBLE_INLINE_LAMBDA {
      float* at = updated + i * kVector;
      const V s = hn::MulAdd(k, kept[i], hn::Mul(decay, access.Load(at)));
      access.Store(s, at);
      output[i] = hn::MulAdd(s, q, output[i]);
    });
  }
  Unroll<kVectors>(
      [&](auto i) THIMBLE_INLINE_LAMBDA { access.Store(output[i], args.o + col + i * kVector); });
}

void KdaStep(const KdaStepArgs& args) noexcept {
  constexpr size_t kStep = kKdaVectors * kVector;
  const size_t n = args.head_dim;
  size_t col = 0;
  for (; col + kStep <= n; col += kStep) KdaTile<kKdaVectors>(args, col, WholeVectors());
  for (; col + kVector <= n; col += kVector) KdaTile<1>(args, col, WholeVectors());
  if (col < n) KdaTile<1>(args, col, PartialVector{n - col});
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
