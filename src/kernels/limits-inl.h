// The limits of the machine, to hold the kernels against. Compiled once for each SIMD target.

#if defined(THIMBLE_KERNELS_LIMITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_KERNELS_LIMITS_INL_H_
#undef THIMBLE_KERNELS_LIMITS_INL_H_
#else
#define THIMBLE_KERNELS_LIMITS_INL_H_
#endif

#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble {
namespace HWY_NAMESPACE {
namespace {

/// Independent sums, so that loads wait for the memory alone.
constexpr size_t kReadSums = 8;

uint32_t SumWords(const uint32_t* words, size_t count) noexcept {
  constexpr size_t kStep = kReadSums * kVector;
  U sum[kReadSums];
  Unroll<kReadSums>([&](auto s) THIMBLE_INLINE_LAMBDA { sum[s] = hn::Zero(kU); });
  size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    Unroll<kReadSums>([&](auto s) THIMBLE_INLINE_LAMBDA {
      sum[s] = hn::Add(sum[s], hn::LoadU(kU, words + i + s * kVector));
    });
  }
  uint32_t total = 0;
  for (; i < count; ++i) total += words[i];
  Unroll<kReadSums>([&](auto s) THIMBLE_INLINE_LAMBDA {
    uint32_t lanes[kVector];
    hn::StoreU(sum[s], kU, lanes);
    for (const uint32_t lane : lanes) total += lane;
  });
  return total;
}

/// Chains of multiply-adds: enough to hide the latency of each (8 are needed at two a cycle and
/// four cycles), few enough for sixteen registers.
constexpr size_t kChains = 12;

double MultiplyAddChains(size_t steps, float* sum) noexcept {
  V chain[kChains];
  V factor = hn::Set(kF, 0.5f);
  KeepInRegister(factor);
  Unroll<kChains>(
      [&](auto c) THIMBLE_INLINE_LAMBDA { chain[c] = hn::Set(kF, 1.0f + static_cast<float>(c)); });
  for (size_t i = 0; i < steps; ++i) {
    Unroll<kChains>([&](auto c) THIMBLE_INLINE_LAMBDA {
      chain[c] = hn::MulAdd(chain[c], factor, factor);
      KeepInRegister(chain[c]);
    });
  }
  V total = hn::Zero(kF);
  Unroll<kChains>([&](auto c) THIMBLE_INLINE_LAMBDA { total = hn::Add(total, chain[c]); });
  *sum = SumOfVector(kF, total);
  return 2.0 * static_cast<double>(kChains * kVector) * static_cast<double>(steps);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
