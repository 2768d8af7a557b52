#include "kernels/kernels.h"

// SSSE3 brings these kernels nothing over SSE4; AVX3_DL has the instructions that coded weights
// want. The baseline must stay: it is the scalar target, the same with every compiler since EMU128
// is broken in some.
#define HWY_WANT_AVX3_DL 1
#ifdef THIMBLE_FEW_TARGETS
// Sanitizers make these functions very slow to compile. One vector target serves there; the release
// build tests all.
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_AVX3 | HWY_SSE4 | HWY_SSSE3)
#else
#define HWY_DISABLED_TARGETS HWY_SSSE3
#endif
#define HWY_BROKEN_EMU128 1

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kernels.cc"
#include "hwy/foreach_target.h"  // must precede highway.h

#include "hwy/highway.h"
#include "kernels/activation-inl.h"
#include "kernels/attention-inl.h"
#include "kernels/kda-inl.h"
#include "kernels/limits-inl.h"
#include "kernels/matmul-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble {
namespace HWY_NAMESPACE {

const Kernels& Table() {
  static const Kernels table = {
      .simd = hwy::TargetName(HWY_TARGET),
      .pack_activations = PackActivations,
      .matmul = MatMul,
      .transposed_matvec = TransposedMatVec,
      .decode = Decode,
      .dot = DotKernel,
      .sum_of_squares = SumOfSquares,
      .scale = Scale,
      .axpy = Axpy,
      .add = AddTo,
      .multiply = MultiplyInto,
      .all_finite = AllFinite,
      .rms_norm = RmsNorm,
      .l2_normalize = L2Normalize,
      .softmax = Softmax,
      .sigmoid = SigmoidKernel,
      .gate = Gate,
      .silu_glu = SiluGlu,
      .situ_glu = SituGlu,
      .short_conv = ShortConv,
      .decay_bounded = DecayBounded,
      .decay_softplus = DecaySoftplus,
      .kda_step = KdaStep,
      .mla_attend = MlaAttend,
      .sum_words = SumWords,
      .multiply_add_chains = MultiplyAddChains,
  };
  return table;
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble {

std::vector<const Kernels*> AllKernels() {
  struct Target {
    int64_t bit;
    const Kernels& (*table)();
  };
  static constexpr Target kBestFirst[] = {{HWY_AVX3_DL, HWY_CHOOSE_AVX3_DL(Table)},
                                          {HWY_AVX3, HWY_CHOOSE_AVX3(Table)},
                                          {HWY_AVX2, HWY_CHOOSE_AVX2(Table)},
                                          {HWY_SSE4, HWY_CHOOSE_SSE4(Table)},
                                          {HWY_STATIC_TARGET, HWY_CHOOSE_FALLBACK(Table)}};
  const int64_t supported = hwy::SupportedTargets() | HWY_STATIC_TARGET;
  std::vector<const Kernels*> all;
  for (const Target& target : kBestFirst) {
    if ((supported & target.bit) != 0 && target.table != nullptr) all.push_back(&target.table());
  }
  return all;
}

const Kernels& BestKernels() {
  static const Kernels& best = *AllKernels().front();
  return best;
}

}  // namespace thimble
#endif  // HWY_ONCE
