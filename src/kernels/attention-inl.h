// Latent attention: one pass over the cache for several queries. Compiled once for each SIMD
// target.
//
// All heads read the same rows, so a block of rows is decoded once for all queries of a call, and
// lies in the second cache while they use it. Queries go through a block in groups of
// kGroupQueries, which stay in the first cache beside a few rows, and within a group by tiles that
// stay in registers: each number that is loaded serves several multiply-adds. None of this changes
// the order of a sum (kernels.h, MlaAttendArgs).

#if defined(THIMBLE_KERNELS_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_KERNELS_ATTENTION_INL_H_
#undef THIMBLE_KERNELS_ATTENTION_INL_H_
#else
#define THIMBLE_KERNELS_ATTENTION_INL_H_
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

constexpr size_t kGroupQueries = 8;

/// Queries of a register tile: with four rows their scores fill the lanes of a vector, and with
/// kTileVectors vectors of columns their contexts leave registers for what is multiplied. Those
/// that are left over go alone, with more columns.
constexpr size_t kQueryTile = std::max<size_t>(kVector / 4, 1);
constexpr size_t kTileVectors = 4;
constexpr size_t kRowVectors = 8;
static_assert(kGroupQueries % kQueryTile == 0);

/// Some queries, and the rows of a block that all of them see.
struct BlockTask {
  const float* q = nullptr;  // [num_queries, width]
  size_t num_queries = 0;
  const float* rows = nullptr;  // [num_rows, width]
  size_t num_rows = 0;
  size_t width = 0;
  size_t latent = 0;
  float scale = 0.0f;
  float* context = nullptr;  // [num_queries, latent]
};

/// Brings the next block into the second cache while this one is used: each step of a tile asks for
/// a line, since more at once would wait for one another.
class NextBlock {
 public:
  NextBlock(const void* first, size_t bytes)
      : at_(reinterpret_cast<uintptr_t>(first)), left_(bytes / kCacheLine) {}
  /// The lines that a tile of `steps` steps is to ask for; where none are left, those at `near`.
  HWY_INLINE uintptr_t Take(size_t steps, const void* near) {
    if (left_ < steps) return reinterpret_cast<uintptr_t>(near);
    const uintptr_t from = at_;
    at_ += steps * kCacheLine;
    left_ -= steps;
    return from;
  }

 private:
  uintptr_t at_;
  size_t left_;  // lines
};

// ---- scores

#if HWY_TARGET != HWY_SCALAR
/// Lanes l whose bit kDistance is clear: a[l] + a[l + kDistance]; the others: b[l - kDistance] +
/// b[l]. A step of the contract's tree for two vectors at once.
template <size_t kDistance>
HWY_INLINE V AddLanes(V a, V b) {
  if constexpr (2 * kDistance == kVector) {
    return hn::Add(hn::ConcatUpperLower(kF, b, a), hn::ConcatLowerUpper(kF, b, a));
  } else if constexpr (kDistance == 4) {
    return hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
  } else if constexpr (kDistance == 2) {
    const hn::RepartitionToWide<decltype(kF)> wide;
    const auto wide_a = hn::BitCast(wide, a), wide_b = hn::BitCast(wide, b);
    return hn::Add(hn::BitCast(kF, hn::OddEven(wide_b, wide_a)),
                   hn::BitCast(kF, hn::Shuffle01(hn::OddEven(wide_a, wide_b))));
  } else {
    return hn::Add(hn::OddEven(b, a), hn::Shuffle2301(hn::OddEven(a, b)));
  }
}

/// Lane l of the result is the sum of the lanes of sums[l], by the contract's tree.
template <size_t kDistance = kVector / 2>
HWY_INLINE V SumEach(V* sums) {
  Unroll<kDistance>([&](auto i) THIMBLE_INLINE_LAMBDA {
    sums[i] = AddLanes<kDistance>(sums[i], sums[i + kDistance]);
  });
  if constexpr (kDistance > 1) return SumEach<kDistance / 2>(sums);
  return sums[0];
}

/// The first n lanes at p, then zeros.
HWY_INLINE V LoadUpTo(const float* p, size_t n) {
  return n >= kVector ? hn::LoadU(kF, p) : LoadFirst(p, n);
}

/// Part kPart of the sixteen lanes of kVector striped sums: kQueries queries times as many rows as
/// make a vector of them.
template <size_t kQueries, size_t kPart>
HWY_INLINE void SumPart(const BlockTask& task, size_t query, size_t row, uintptr_t ahead, V* sums) {
  constexpr size_t kRows = kVector / kQueries;
  const size_t width = task.width;
  const float* q = task.q + query * width;
  const float* rows = task.rows + row * width;
  Unroll<kVector>([&](auto i) THIMBLE_INLINE_LAMBDA { sums[i] = hn::Zero(kF); });
  const auto add = [&](auto load, size_t at) THIMBLE_INLINE_LAMBDA {
    V row_part[kRows];
    Unroll<kRows>([&](auto j) THIMBLE_INLINE_LAMBDA {
      row_part[j] = load(rows + j * width + at);
      KeepInRegister(row_part[j]);
    });
    Unroll<kQueries>([&](auto i) THIMBLE_INLINE_LAMBDA {
      V query_part = load(q + i * width + at);
      KeepInRegister(query_part);
      Unroll<kRows>([&](auto j) THIMBLE_INLINE_LAMBDA {
        V& sum = sums[i * kRows + j];
        sum = hn::MulAdd(query_part, row_part[j], sum);
      });
    });
  };
  size_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    if constexpr (kPart == 0) PrefetchLine(ahead + i / kLanes * kCacheLine);
    add([](const float* p) THIMBLE_INLINE_LAMBDA { return hn::LoadU(kF, p); }, i + kPart * kVector);
  }
  if (i == width) return;
  const size_t left = width - i > kPart * kVector ? width - i - kPart * kVector : 0;
  add([=](const float* p) THIMBLE_INLINE_LAMBDA { return LoadUpTo(p, left); }, i + kPart * kVector);
}

/// The scores of kQueries queries with kVector / kQueries rows.
template <size_t kQueries>
HWY_NOINLINE void ScoreTile(const BlockTask& task, size_t query, size_t row, uintptr_t ahead,
                            float* scores) {
  constexpr size_t kRows = kVector / kQueries;
  V parts[kParts][kVector];
  Unroll<kParts>([&](auto part) THIMBLE_INLINE_LAMBDA {
    SumPart<kQueries, part>(task, query, row, ahead, parts[part]);
  });
  V sums[kVector];
  Unroll<kVector>([&](auto i) THIMBLE_INLINE_LAMBDA {
    Lanes16 lanes;
    Unroll<kParts>([&](auto part) THIMBLE_INLINE_LAMBDA { lanes.part[part] = parts[part][i]; });
    sums[i] = SumOfParts<kParts>(lanes);
  });
  float scaled[kVector];
  hn::StoreU(hn::Mul(Constant(task.scale), SumEach(sums)), kF, scaled);
  Unroll<kQueries>([&](auto i) THIMBLE_INLINE_LAMBDA {
    std::memcpy(scores + (query + i) * kAttentionBlock + row, scaled + i * kRows,
                kRows * sizeof(float));
  });
}
#else
template <size_t kQueries>
HWY_NOINLINE void ScoreTile(const BlockTask& task, size_t query, size_t row, uintptr_t,
                            float* scores) {
  scores[query * kAttentionBlock + row] =
      task.scale * Dot(task.q + query * task.width, task.rows + row * task.width, task.width);
}
#endif

/// scores[query][row], in rows of kAttentionBlock. The number of queries is a multiple of kQueries.
template <size_t kQueries>
void ScoreBlock(const BlockTask& task, NextBlock& next, float* scores) {
  constexpr size_t kRows = kVector / kQueries;
  size_t row = 0;
  for (; row + kRows <= task.num_rows; row += kRows) {
    for (size_t query = 0; query < task.num_queries; query += kQueries) {
      ScoreTile<kQueries>(task, query, row, next.Take(task.width / kLanes, task.q), scores);
    }
  }
  for (; row < task.num_rows; ++row) {
    for (size_t query = 0; query < task.num_queries; ++query) {
      scores[query * kAttentionBlock + row] =
          task.scale * Dot(task.q + query * task.width, task.rows + row * task.width, task.width);
    }
  }
}

// ---- softmax

/// The online softmax over blocks of positions: the sums so far are relative to e^largest.
struct SoftmaxState {
  float largest = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
  float factor = 1.0f;  // exactly 1 if the maximum stands, by which earlier sums are multiplied
};

/// Turns the scores of kQueries queries with `count` rows into weights relative to the new maximum.
/// The queries' serial sums run side by side, or each addition would wait for the last.
template <size_t kQueries>
void AddScores(SoftmaxState* states, float* scores, size_t count) {
  float sums[kQueries];
  Unroll<kQueries>([&](auto i) THIMBLE_INLINE_LAMBDA {
    float* of_query = scores + i * kAttentionBlock;
    const float largest = std::max(states[i].largest, MaxOf(of_query, count));
    states[i].factor = hn::GetLane(Exp(Constant(states[i].largest - largest)));
    ExpBelow(largest, count, of_query);
    states[i].largest = largest;
    sums[i] = states[i].sum * states[i].factor;
  });
  for (size_t j = 0; j < count; ++j) {
    Unroll<kQueries>([&](auto i)
                         THIMBLE_INLINE_LAMBDA { sums[i] += scores[i * kAttentionBlock + j]; });
  }
  Unroll<kQueries>([&](auto i) THIMBLE_INLINE_LAMBDA { states[i].sum = sums[i]; });
}

// ---- contexts

/// context[i] = factor * context[i] + sum_j weights[j] rows[j][i], for the kVectors vectors of
/// columns from `col` on of kQueries queries from `query` on.
template <size_t kQueries, size_t kVectors, class Access>
HWY_NOINLINE void AddRows(const BlockTask& task, size_t query, size_t col, const float* weights,
                          const SoftmaxState* states, uintptr_t ahead, Access access) {
  weights += query * kAttentionBlock;
  float* context = task.context + query * task.latent + col;
  V sums[kQueries][kVectors];
  Unroll<kQueries>([&](auto i) THIMBLE_INLINE_LAMBDA {
    const V factor = Constant(states[query + i].factor);
    Unroll<kVectors>([&](auto v) THIMBLE_INLINE_LAMBDA {
      sums[i][v] = hn::Mul(factor, access.Load(context + i * task.latent + v * kVector));
    });
  });
  const float* row = task.rows + col;
  for (size_t j = 0; j < task.num_rows; ++j, row += task.width) {
    PrefetchLine(ahead + j * kCacheLine);
    V values[kVectors];
    Unroll<kVectors>([&](auto v) THIMBLE_INLINE_LAMBDA {
      values[v] = access.Load(row + v * kVector);
      KeepInRegister(values[v]);
    });
    Unroll<kQueries>([&](auto i) THIMBLE_INLINE_LAMBDA {
      V weight = Constant(weights[i * kAttentionBlock + j]);
      KeepInRegister(weight);
      Unroll<kVectors>([&](auto v) THIMBLE_INLINE_LAMBDA {
        sums[i][v] = hn::MulAdd(weight, values[v], sums[i][v]);
      });
    });
  }
  Unroll<kQueries>([&](auto i) THIMBLE_INLINE_LAMBDA {
    Unroll<kVectors>([&](auto v) THIMBLE_INLINE_LAMBDA {
      access.Store(sums[i][v], context + i * task.latent + v * kVector);
    });
  });
}

/// All columns. The number of queries is a multiple of kQueries.
template <size_t kQueries, size_t kVectors>
void AddAllRows(const BlockTask& task, const float* weights, const SoftmaxState* states,
                NextBlock& next) {
  size_t col = 0;
  const auto add = [&](auto vectors, auto access) THIMBLE_INLINE_LAMBDA {
    for (size_t query = 0; query < task.num_queries; query += kQueries) {
      AddRows<kQueries, vectors>(task, query, col, weights, states,
                                 next.Take(task.num_rows, task.rows), access);
    }
  };
  using Several = std::integral_constant<size_t, kVectors>;
  using One = std::integral_constant<size_t, 1>;
  for (; col + kVectors * kVector <= task.latent; col += kVectors * kVector) {
    add(Several(), WholeVectors());
  }
  for (; col + kVector <= task.latent; col += kVector) add(One(), WholeVectors());
  if (col < task.latent) add(One(), PartialVector{task.latent - col});
}

template <size_t kQueries, size_t kVectors>
void AddBlock(const BlockTask& task, NextBlock& next, SoftmaxState* states) {
  float scores[kGroupQueries * kAttentionBlock];
  ScoreBlock<kQueries>(task, next, scores);
  for (size_t query = 0; query < task.num_queries; query += kQueries) {
    AddScores<kQueries>(states + query, scores + query * kAttentionBlock, task.num_rows);
  }
  AddAllRows<kQueries, kVectors>(task, scores, states, next);
}

// ---- rows of the cache

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
const float* BlockRows(const MlaAttendArgs& args, size_t first, size_t count) {
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

/// Adds the rows [first, end) of the cache, a block or its beginning, to the queries that see them.
void AddRowsOfCache(const MlaAttendArgs& args, size_t first, size_t end, NextBlock next,
                    SoftmaxState* states) {
  const size_t width = args.shape.Width();
  const size_t num_queries = args.num_tokens * args.num_heads;
  BlockTask task = {.rows = BlockRows(args, first, end - first),
                    .width = width,
                    .latent = args.shape.latent,
                    .scale = args.scale};
  // Tokens before this one saw all that they may see.
  size_t token = first < args.num_positions ? 0 : first - args.num_positions + 1;
  for (size_t query = token * args.num_heads; query < num_queries; query += task.num_queries) {
    token = query / args.num_heads;
    task.num_rows = std::min(kAttentionBlock, args.num_positions + token - first);
    // From the first token on that sees a whole block, all do.
    const size_t last =
        task.num_rows == kAttentionBlock ? num_queries : (token + 1) * args.num_heads;
    task.q = args.q + query * width;
    task.context = args.context + query * task.latent;
    task.num_queries = std::min(kGroupQueries, last - query);
    if (task.num_queries >= kQueryTile) {
      task.num_queries -= task.num_queries % kQueryTile;
      AddBlock<kQueryTile, kTileVectors>(task, next, states + query);
    } else {
      AddBlock<1, kRowVectors>(task, next, states + query);
    }
  }
}

void MlaAttend(const MlaAttendArgs& args) noexcept {
  const size_t num_queries = args.num_tokens * args.num_heads;
  const size_t num_rows = args.num_positions + args.num_tokens - 1;
  const size_t row_bytes = args.shape.RowBytes();
  SoftmaxState states[kMaxAttentionQueries];
  std::fill_n(args.context, num_queries * args.shape.latent, 0.0f);
  for (size_t first = 0; first < num_rows; first += kAttentionBlock) {
    const size_t end = std::min(first + kAttentionBlock, num_rows);
    const size_t next_rows = std::min(kAttentionBlock, num_rows - end);
    AddRowsOfCache(
        args, first, end,
        {static_cast<const uint8_t*>(args.cache) + end * row_bytes, next_rows * row_bytes}, states);
  }
  for (size_t query = 0; query < num_queries; ++query) {
    float* context = args.context + query * args.shape.latent;
    Scale(1.0f / states[query].sum, context, args.shape.latent, context);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
