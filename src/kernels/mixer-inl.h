// The token mixers' own kernels: short convolution, Kimi Delta Attention, latent attention.
// Compiled once for each SIMD target.

#if defined(THIMBLE_KERNELS_MIXER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_KERNELS_MIXER_INL_H_
#undef THIMBLE_KERNELS_MIXER_INL_H_
#else
#define THIMBLE_KERNELS_MIXER_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "kernels/kernels.h"
#include "kernels/math-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/vector-inl.h"

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

// ---- latent attention

/// The online softmax over blocks of positions: the sums so far are relative to e^largest.
struct SoftmaxState {
  float largest = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
};

/// Turns `count` scores into weights relative to the new maximum; returns the factor, exactly 1 if
/// the maximum stands, by which earlier sums must be multiplied.
HWY_INLINE float AddScores(SoftmaxState& state, float* scores, size_t count) {
  const float largest = std::max(state.largest, MaxOf(scores, count));
  const float factor = hn::GetLane(Exp(Constant(state.largest - largest)));
  ExpBelow(largest, count, scores);
  state.largest = largest;
  state.sum *= factor;
  for (size_t j = 0; j < count; ++j) state.sum += scores[j];
  return factor;
}

/// context[i] = factor context[i] + sum_j weights[j] rows[j][i], for kVectors vectors.
template <size_t kVectors, class Access>
HWY_INLINE void AddWeightedRows(const float* weights, size_t count, const float* rows,
                                size_t row_stride, float factor, float* context, Access access) {
  V sum[kVectors];
  Unroll<kVectors>([&](auto i) THIMBLE_INLINE_LAMBDA {
    sum[i] = hn::Mul(Constant(factor), access.Load(context + i * kVector));
  });
  for (size_t j = 0; j < count; ++j) {
    const V weight = Constant(weights[j]);
    const float* row = rows + j * row_stride;
    Unroll<kVectors>([&](auto i) THIMBLE_INLINE_LAMBDA {
      sum[i] = hn::MulAdd(weight, access.Load(row + i * kVector), sum[i]);
    });
  }
  Unroll<kVectors>([&](auto i)
                       THIMBLE_INLINE_LAMBDA { access.Store(sum[i], context + i * kVector); });
}

/// Values of E4M3 codes, one in each lane, times the scale: exact. Exponent and fraction moved to
/// where float32 has them are off by a factor of 2^120; multiplying sets subnormal codes right too.
HWY_INLINE V DecodeE4M3(U codes, V scale) {
  const U magnitude = hn::ShiftLeft<20>(hn::And(codes, hn::Set(kU, 0x7fu)));
  const U sign = hn::ShiftLeft<24>(hn::And(codes, hn::Set(kU, 0x80u)));
  const V value = hn::Mul(hn::BitCast(kF, magnitude), hn::Set(kF, 0x1p120f));
  return hn::Mul(hn::Or(value, hn::BitCast(kF, sign)), scale);
}

void DecodeE4M3Part(const uint8_t* codes, uint8_t scale_code, size_t n, float* out) {
  const hn::Rebind<uint8_t, decltype(kU)> narrow;
  const V scale = Constant(kE8M0[scale_code]);
  size_t i = 0;
  for (; i + kVector <= n; i += kVector) {
    hn::StoreU(DecodeE4M3(hn::PromoteTo(kU, hn::LoadU(narrow, codes + i)), scale), kF, out + i);
  }
  if (i == n) return;
  uint8_t tail[kVector] = {};
  std::memcpy(tail, codes + i, n - i);
  StoreFirst(DecodeE4M3(hn::PromoteTo(kU, hn::LoadU(narrow, tail)), scale), out + i, n - i);
}

void DecodeLatent(const LatentShape& shape, const uint8_t* row, float* out) {
  const size_t width = shape.Width();
  if (shape.format == LatentFormat::kFP8) {
    DecodeE4M3Part(row, row[width], shape.latent, out);
    DecodeE4M3Part(row + shape.latent, row[width + 1], shape.extra, out + shape.latent);
    return;
  }
  size_t i = 0;
  for (; i + kVector <= width; i += kVector) hn::StoreU(LoadBF16(row + 2 * i), kF, out + i);
  if (i == width) return;
  uint8_t tail[2 * kVector] = {};
  std::memcpy(tail, row + 2 * i, 2 * (width - i));
  StoreFirst(LoadBF16(tail), out + i, width - i);
}

/// `count` rows of the cache from `first` on, as floats.
HWY_INLINE const float* BlockRows(const MlaAttendArgs& args, size_t first, size_t count) {
  const auto* cache = static_cast<const uint8_t*>(args.cache);
  const size_t row_bytes = args.shape.RowBytes();
  if (args.shape.format == LatentFormat::kF32) {
    return reinterpret_cast<const float*>(cache + first * row_bytes);
  }
  for (size_t j = 0; j < count; ++j) {
    DecodeLatent(args.shape, cache + (first + j) * row_bytes,
                 args.decoded + j * args.shape.Width());
  }
  return args.decoded;
}

void AddBlock(const MlaAttendArgs& args, size_t first, size_t count, SoftmaxState& state) {
  const size_t latent = args.shape.latent;
  const size_t row_stride = args.shape.Width();
  const float* rows = BlockRows(args, first, count);
  float scores[kAttentionBlock] = {};
  for (size_t j = 0; j < count; ++j) {
    scores[j] = args.scale * Dot(args.q, rows + j * row_stride, row_stride);
  }
  const float factor = AddScores(state, scores, count);
  constexpr size_t kVectors = kVector == 1 ? 4 : 8;
  constexpr size_t kStep = kVectors * kVector;
  float* context = args.context;
  size_t i = 0;
  for (; i + kStep <= latent; i += kStep) {
    AddWeightedRows<kVectors>(scores, count, rows + i, row_stride, factor, context + i,
                              WholeVectors());
  }
  for (; i + kVector <= latent; i += kVector) {
    AddWeightedRows<1>(scores, count, rows + i, row_stride, factor, context + i, WholeVectors());
  }
  if (i < latent) {
    AddWeightedRows<1>(scores, count, rows + i, row_stride, factor, context + i,
                       PartialVector{latent - i});
  }
}

void MlaAttend(const MlaAttendArgs& args) noexcept {
  std::fill_n(args.context, args.shape.latent, 0.0f);
  SoftmaxState state;
  for (size_t first = 0; first < args.num_positions; first += kAttentionBlock) {
    AddBlock(args, first, std::min(kAttentionBlock, args.num_positions - first), state);
  }
  Scale(1.0f / state.sum, args.context, args.shape.latent, args.context);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
