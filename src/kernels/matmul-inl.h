// Products of packed weights and activations. All paths sum each output in the same paired order;
// they differ only in what they keep in registers. Compiled once for each SIMD target.

#if defined(THIMBLE_KERNELS_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_KERNELS_MATMUL_INL_H_
#undef THIMBLE_KERNELS_MATMUL_INL_H_
#else
#define THIMBLE_KERNELS_MATMUL_INL_H_
#endif

#include <algorithm>
#include <array>

#include "kernels/coded-inl.h"
#include "kernels/kernels.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble {
namespace HWY_NAMESPACE {
namespace {

// ---- few tokens: weights are decoded on their way from memory into the sums

/// Up to this many tokens share one decoding without a buffer.
constexpr size_t kFewTokens = kManyRegisters ? 4 : 2;

/// Rows whose sums are in flight at once, so that their latencies overlap. Formats with scales have
/// two streams for each row, and more than four rows would exceed the address registers.
template <class Rows, size_t kTokens>
constexpr size_t kRowsAtOnce = kVector == 1         ? 1
                               : !kManyRegisters    ? (kTokens == 1 ? 4 : 2)
                               : kTokens > 1        ? 4
                               : Rows::kWholeGroups ? 4
                                                    : 8;

template <size_t kRows, size_t kTokens>
struct Sums {
  Lanes16 of[kRows][kTokens];
};

/// Adds a group of kCount rows times the matching group at x of each token to the sums from kFirst
/// on.
template <size_t kCount, size_t kFirst = 0, class Rows, size_t kRows, size_t kTokens>
HWY_INLINE void AddGroup(const Rows& rows, const float* x, size_t x_stride,
                         Sums<kRows, kTokens>& sums) {
  Unroll<kParts>([&](auto p) THIMBLE_INLINE_LAMBDA {
    V x_even[kTokens], x_odd[kTokens];
    Unroll<kTokens>([&](auto t) THIMBLE_INLINE_LAMBDA {
      x_even[t] = hn::LoadU(kF, x + t * x_stride + p * kVector);
      x_odd[t] = hn::LoadU(kF, x + t * x_stride + kLanes + p * kVector);
    });
    Unroll<kCount>([&](auto r) THIMBLE_INLINE_LAMBDA {
      V even, odd;
      rows.Load(r, 0, p, even, odd);
      Unroll<kTokens>([&](auto t) THIMBLE_INLINE_LAMBDA {
        V& sum = sums.of[kFirst + r][t].part[p];
        sum = hn::MulAdd(even, x_even[t], sum);
        sum = hn::MulAdd(odd, x_odd[t], sum);
      });
    });
  });
}

/// Adds the last cols % 32 elements of each row, which `rows` has come to; formats of whole groups
/// have none.
template <class Rows, size_t kRows, size_t kTokens>
HWY_INLINE void AddTail(const Rows& rows, const MatMulArgs& args, const float* x,
                        Sums<kRows, kTokens>& sums) {
  if constexpr (!Rows::kWholeGroups) {
    const size_t tail_bytes = args.w.cols % kGroup * Rows::kElementBytes;
    Unroll<kRows>([&](auto r) THIMBLE_INLINE_LAMBDA {
      const PaddedGroup group(rows.data + r * rows.stride, tail_bytes);
      Sums<1, kTokens> row_sums;
      Unroll<kTokens>([&](auto t) THIMBLE_INLINE_LAMBDA { row_sums.of[0][t] = sums.of[r][t]; });
      AddGroup<1>(Rows(group), x, args.x_stride, row_sums);
      Unroll<kTokens>([&](auto t) THIMBLE_INLINE_LAMBDA { sums.of[r][t] = row_sums.of[0][t]; });
    });
  }
}

template <size_t kRows, size_t kTokens>
HWY_INLINE void ClearSums(Sums<kRows, kTokens>& sums) {
  Unroll<kRows>([&](auto r) THIMBLE_INLINE_LAMBDA {
    Unroll<kTokens>([&](auto t) THIMBLE_INLINE_LAMBDA { sums.of[r][t] = ZeroLanes(); });
  });
}

/// Writes the outputs of the rows from `row` on.
template <size_t kRows, size_t kTokens>
HWY_INLINE void StoreSums(const Sums<kRows, kTokens>& sums, const MatMulArgs& args, size_t row) {
  Unroll<kTokens>([&](auto t) THIMBLE_INLINE_LAMBDA {
    Unroll<kRows>([&](auto r) THIMBLE_INLINE_LAMBDA {
      args.y[t * args.y_stride + row + r] = SumOfLanes(sums.of[r][t]);
    });
  });
}

/// Outputs of kRows rows from `row` on, for kTokens tokens. Asks for the rows `ahead` of them.
template <class Rows, size_t kRows, size_t kTokens>
void FewTokensTile(const MatMulArgs& args, size_t row, size_t ahead) {
  Rows rows(args.w, row);
  Rows next(args.w, row + ahead);
  Sums<kRows, kTokens> sums;
  ClearSums(sums);
  const float* x = args.x;
  for (size_t groups = args.w.cols / kGroup; groups > 0; --groups) {
    next.template PrefetchShare<kRows>();
    AddGroup<kRows>(rows, x, args.x_stride, sums);
    rows.NextGroup();
    x += kGroup;
  }
  if (args.w.cols % kGroup != 0) AddTail(rows, args, x, sums);
  StoreSums(sums, args, row);
}

/// A group of Q8 rows and its scales, those of a row kQ8Run behind those of the row before.
struct Q8Group {
  const uint8_t* codes;
  size_t stride;
  const float* scales;

  template <class Part>
  HWY_INLINE void Load(size_t r, size_t /*g*/, Part p, V& even, V& odd) const {
    Q8Rows::Decode(codes + r * stride, p, scales + r * kQ8Run, even, odd);
  }
};

/// The same for Q8 rows, whose scales are widened a run of groups at a time: one by one they
/// would take as many instructions as the codes.
template <size_t kRows, size_t kTokens>
HWY_NOINLINE void Q8Tile(const MatMulArgs& args, size_t row, size_t ahead) {
  const Q8Rows rows(args.w, row);
  Q8Rows next(args.w, row + ahead);
  Sums<kRows, kTokens> sums;
  ClearSums(sums);
  alignas(64) float scales[kRows * kQ8Run];
  Q8Group group = {rows.codes, rows.stride, scales};
  const float* x = args.x;
  const size_t groups = args.w.cols / kGroup;
  for (size_t first = 0; first < groups; first += kQ8Run) {
    const size_t count = std::min(kQ8Run, groups - first);
    for (size_t r = 0; r < kRows; ++r) rows.Widen(r, first, count, scales + r * kQ8Run);
    for (group.scales = scales; group.scales != scales + count; ++group.scales) {
      next.PrefetchShare<kRows>();
      AddGroup<kRows>(group, x, args.x_stride, sums);
      group.codes += kGroup;
      KeepOnePointer(group.codes);
      x += kGroup;
    }
  }
  StoreSums(sums, args, row);
}

template <class Rows, size_t kTokens, size_t kRows>
void FewTokensRows(const MatMulArgs& args) {
  const size_t ahead = RowsAhead<kRows>(args.w.RowBytes());
  const auto tile = [&](auto num_rows, size_t row) {
    if constexpr (std::is_same_v<Rows, Q8Rows>) {
      Q8Tile<num_rows, kTokens>(args, row, ahead);
    } else {
      FewTokensTile<Rows, num_rows, kTokens>(args, row, ahead);
    }
  };
  size_t row = 0;
  for (; row + kRows <= args.w.rows; row += kRows) {
    tile(std::integral_constant<size_t, kRows>(), row);
  }
  for (; row < args.w.rows; ++row) tile(std::integral_constant<size_t, 1>(), row);
}

template <class Rows, size_t kTokens>
void FewTokens(const MatMulArgs& args) {
  // Activations that stay in the first cache need not be shared by rows, and hardware follows one
  // row best. Narrow vectors and float32 gain nothing by that.
  constexpr size_t kColsOfOneRow = 4096;
  if constexpr (kTokens == 1 && kManyRegisters && std::is_same_v<Rows, BF16Rows>) {
    if (args.w.cols <= kColsOfOneRow) return FewTokensRows<Rows, 1, 1>(args);
  }
  FewTokensRows<Rows, kTokens, kRowsAtOnce<Rows, kTokens>>(args);
}

#if HWY_TARGET == HWY_AVX3_DL

// ---- one token and MXFP4 rows, of which this target unpacks several groups at once

/// Adds pair kPair of the groups of a run. With the last one each row's next run is filled from
/// where `rows` has come to: long before it is used, since the processor does not look far ahead.
template <size_t kPair, size_t kRows>
HWY_INLINE void AddMxPair(const MxRows& rows, const float* x, MxRun (&runs)[kRows],
                          Sums<kRows, 1>& sums) {
  V xs[4];
  Unroll<4>([&](auto i) THIMBLE_INLINE_LAMBDA {
    xs[i] = hn::LoadU(kF, x + kPair * 2 * kGroup + i * kLanes);
    KeepInRegister(xs[i]);
  });
  Unroll<kRows>([&](auto r) THIMBLE_INLINE_LAMBDA {
    V even[2], odd[2];
    runs[r].TakePair(rows.scales + r * rows.scale_stride + kPair * 2, even, odd);
    if constexpr (kPair == kMxRun / 2 - 1) runs[r].Fill(rows, r);
    V& sum = sums.of[r][0].part[0];
    sum = hn::MulAdd(even[0], xs[0], sum);
    sum = hn::MulAdd(odd[0], xs[1], sum);
    sum = hn::MulAdd(even[1], xs[2], sum);
    sum = hn::MulAdd(odd[1], xs[3], sum);
  });
}

/// Outputs of kRows rows from `row` on, for one token; rows have at least one run.
template <size_t kRows>
HWY_NOINLINE void MxTile(const MatMulArgs& args, size_t row, size_t ahead) {
  MxRows rows(args.w, row);
  MxRows next(args.w, row + ahead);
  MxRun runs[kRows];
  Unroll<kRows>([&](auto r) THIMBLE_INLINE_LAMBDA { runs[r].Fill(rows, r); });
  Sums<kRows, 1> sums;
  ClearSums(sums);
  const float* x = args.x;
  const size_t groups = args.w.cols / kGroup;
  for (size_t left = groups / kMxRun; left > 0; --left) {
    next.PrefetchShare<kRows * kMxRun>();
    AddMxPair<0>(rows, x, runs, sums);
    rows.AdvanceCodes(left > 1 ? kMxRun : 0);  // behind the last run nothing may be read
    AddMxPair<1>(rows, x, runs, sums);
    rows.AdvanceScales(kMxRun);
    x += kMxRun * kGroup;
  }
  rows.AdvanceCodes(kMxRun);
  for (size_t left = groups % kMxRun; left > 0; --left) {
    AddGroup<kRows>(rows, x, args.x_stride, sums);
    rows.NextGroup();
    x += kGroup;
  }
  StoreSums(sums, args, row);
}

void OneTokenMx(const MatMulArgs& args) {
  constexpr size_t kRows = 8;
  const size_t ahead = RowsAhead<kRows>(args.w.RowBytes());
  size_t row = 0;
  for (; row + kRows <= args.w.rows; row += kRows) MxTile<kRows>(args, row, ahead);
  MatMulArgs rest = args;
  rest.w = args.w.Rows(row, args.w.rows - row);
  rest.y += row;
  FewTokens<MxRows, 1>(rest);
}

// ---- few tokens and coded rows, which this target decodes in registers

/// A group of BF16 rows, decoded.
template <size_t kRows>
struct DecodedGroup {
  U words[kRows];

  template <class Part>
  HWY_INLINE void Load(size_t r, size_t /*g*/, Part /*p*/, V& even, V& odd) const {
    SplitWords(words[r], even, odd);
  }
};

struct CodedCursor {
  const uint8_t* span;
  Escapes escapes;
};

/// Adds a span of each row, in steps of half a span of two rows, since more would exceed the
/// registers. With one token a step is decoded before the one before it is added: the processor
/// does not look far enough ahead to do both at once otherwise.
template <size_t kRows, size_t kTokens>
HWY_INLINE void AddSpan(const ExponentTable& table, CodedCursor* rows, const float* x,
                        size_t x_stride, Sums<kRows, kTokens>& sums) {
  constexpr size_t kPair = std::min<size_t>(kRows, 2);
  constexpr size_t kPairs = kRows / kPair;
  constexpr size_t kSteps = 2 * kPairs;
  constexpr size_t kAhead = kTokens == 1 ? 1 : 0;
  DecodedGroup<kPair> first[kSteps], second[kSteps];
  Unroll<kSteps + kAhead>([&](auto step) THIMBLE_INLINE_LAMBDA {
    if constexpr (step < kSteps) {
      Unroll<kPair>([&](auto r) THIMBLE_INLINE_LAMBDA {
        CodedCursor& row = rows[step % kPairs * kPair + r];
        DecodeHalf<step / kPairs>(table, row.span, row.span + kCodedSpan, row.escapes,
                                  first[step].words[r], second[step].words[r]);
      });
    }
    if constexpr (step >= kAhead) {
      constexpr size_t kDone = step - kAhead;
      const float* from = x + kDone / kPairs * kHalfSpan;
      AddGroup<kPair, kDone % kPairs * kPair>(first[kDone], from, x_stride, sums);
      AddGroup<kPair, kDone % kPairs * kPair>(second[kDone], from + kGroup, x_stride, sums);
    }
  });
}

/// Adds the short last span of a row of `cols` columns.
template <size_t kTokens>
HWY_NOINLINE void AddShortSpan(const ExponentTable& table, CodedCursor row, const MatMulArgs& args,
                               const float* x, Sums<1, kTokens>& sums) {
  const size_t count = args.w.cols % kCodedSpan;
  uint16_t elements[kCodedSpan] = {};
  DecodeSpan(table, row.span, count, row.escapes, elements);
  BF16Rows decoded({WeightFormat::kBF16, 1, kCodedSpan, reinterpret_cast<const uint8_t*>(elements)},
                   0);
  for (size_t c = 0; c < count; c += kGroup) {
    AddGroup<1>(decoded, x + c, args.x_stride, sums);
    decoded.NextGroup();
  }
}

/// Outputs of kRows rows of the group from row `row` of the part on, for kTokens tokens. Asks for
/// what lies `bytes_ahead`.
template <size_t kRows, size_t kTokens>
HWY_NOINLINE void CodedTile(const MatMulArgs& args, const GroupPart& part,
                            const ExponentTable& table, size_t row, size_t bytes_ahead) {
  CodedCursor rows[kRows];
  Unroll<kRows>([&](auto r) THIMBLE_INLINE_LAMBDA {
    rows[r] = {part.CodedRow(part.begin + row + r), part.EscapesOf(part.begin + row + r)};
  });
  const uint8_t* next = rows[0].span + bytes_ahead;
  Sums<kRows, kTokens> sums;
  ClearSums(sums);
  const float* x = args.x;
  for (size_t spans = args.w.cols / kCodedSpan; spans > 0; --spans, x += kCodedSpan) {
    PrefetchLines<kRows * kSpanBytes>(next);
    next += kRows * kSpanBytes;
    AddSpan(table, rows, x, args.x_stride, sums);
    Unroll<kRows>([&](auto r) THIMBLE_INLINE_LAMBDA { rows[r].span += kSpanBytes; });
  }
  if (args.w.cols % kCodedSpan != 0) {
    Unroll<kRows>([&](auto r) THIMBLE_INLINE_LAMBDA {
      Sums<1, kTokens> own;
      Unroll<kTokens>([&](auto t) THIMBLE_INLINE_LAMBDA { own.of[0][t] = sums.of[r][t]; });
      AddShortSpan(table, rows[r], args, x, own);
      Unroll<kTokens>([&](auto t) THIMBLE_INLINE_LAMBDA { sums.of[r][t] = own.of[0][t]; });
    });
  }
  StoreSums(sums, args, row);
}

template <size_t kTokens>
void FewTokensCoded(const MatMulArgs& args) {
  constexpr size_t kRows = kTokens == 1 ? 4 : 2;
  const size_t row_bytes = CodedRowBytes(args.w.cols);
  const size_t bytes_ahead = RowsAhead<kRows>(row_bytes) * row_bytes;
  for (size_t first = 0; first < args.w.rows;) {
    const GroupPart part = FirstPart(args.w, first, args.w.rows - first);
    MatMulArgs own = args;
    own.y += first;
    if (part.plain()) {
      own.w = {WeightFormat::kBF16, part.count(), args.w.cols,
               part.group.PlainRow(part.begin, args.w.cols)};
      FewTokens<BF16Rows, kTokens>(own);
    } else {
      const ExponentTable table(part.group.exponents());
      size_t row = 0;
      for (; row + kRows <= part.count(); row += kRows) {
        CodedTile<kRows, kTokens>(own, part, table, row, bytes_ahead);
      }
      for (; row < part.count(); ++row) CodedTile<1, kTokens>(own, part, table, row, bytes_ahead);
    }
    first += part.count();
  }
}

#endif

// ---- many tokens: weights are decoded once into a buffer, then used for all tokens of a block

// A register tile of kTileRows x kTileTokens vectors of sums; per step it loads one vector of each
// row and each token. Blocks: the decoded weights and one tile's activations stay in L1, one
// block's sums and activations in L2.
constexpr size_t kTileRows = kManyRegisters ? 8 : 4;
constexpr size_t kTileTokens = 3;
constexpr size_t kBlockRows = 16;
constexpr size_t kBlockTokens = 66;
constexpr size_t kBlockCols = 512;

/// Decoded weights in the order of their use: sixteen packed columns of each row, then the next.
using WeightTile = float[kBlockCols / kLanes][kTileRows][kLanes];

struct ManyTokensBuffer {
  alignas(64) WeightTile weights;
  alignas(64) float sums[kBlockRows][kBlockTokens][kLanes];
};

template <class Rows>
HWY_INLINE void DecodeGroup(const Rows& row, size_t g, float* evens, float* odds) {
  Unroll<kParts>([&](auto p) THIMBLE_INLINE_LAMBDA {
    V even, odd;
    row.Load(0, g, p, even, odd);
    hn::StoreU(even, kF, evens + p * kVector);
    hn::StoreU(odd, kF, odds + p * kVector);
  });
}

/// Decodes columns [first, first + count) of a row into row r of the tile, zeros to the end of a
/// group.
template <class Rows>
HWY_INLINE void DecodePacked(const Rows& row, size_t first, size_t count, size_t r,
                             WeightTile& tile) {
  const size_t groups = count / kGroup;
  for (size_t g = 0; g < groups; ++g) {
    DecodeGroup(row, first / kGroup + g, tile[2 * g][r], tile[2 * g + 1][r]);
  }
  if constexpr (!Rows::kWholeGroups) {
    const size_t tail = count % kGroup;
    if (tail == 0) return;
    const uint8_t* from = row.data + (first + groups * kGroup) * Rows::kElementBytes;
    const PaddedGroup group(from, tail * Rows::kElementBytes);
    DecodeGroup(Rows(group), 0, tile[2 * groups][r], tile[2 * groups + 1][r]);
  }
}

/// sums[r][t] += w[r] . x[t], lane by lane, over `cols` packed columns. Lanes are independent, so
/// each vector of the sixteen lanes makes its own pass over the columns, in registers throughout.
template <size_t kTokens>
void ProductTile(const WeightTile& w, const float* x, size_t x_stride, size_t cols,
                 float (*sums)[kBlockTokens][kLanes]) {
  for (size_t lane = 0; lane < kLanes; lane += kVector) {
    V sum[kTileRows][kTokens];
    Unroll<kTileRows>([&](auto r) THIMBLE_INLINE_LAMBDA {
      Unroll<kTokens>([&](auto t)
                          THIMBLE_INLINE_LAMBDA { sum[r][t] = hn::LoadU(kF, &sums[r][t][lane]); });
    });
    for (size_t chunk = 0; chunk < cols / kLanes; ++chunk) {
      V xs[kTokens];
      Unroll<kTokens>([&](auto t) THIMBLE_INLINE_LAMBDA {
        xs[t] = hn::LoadU(kF, x + t * x_stride + chunk * kLanes + lane);
      });
      Unroll<kTileRows>([&](auto r) THIMBLE_INLINE_LAMBDA {
        V weights = hn::LoadU(kF, &w[chunk][r][lane]);
        KeepInRegister(weights);
        Unroll<kTokens>([&](auto t) THIMBLE_INLINE_LAMBDA {
          sum[r][t] = hn::MulAdd(weights, xs[t], sum[r][t]);
        });
      });
    }
    Unroll<kTileRows>([&](auto r) THIMBLE_INLINE_LAMBDA {
      Unroll<kTokens>([&](auto t)
                          THIMBLE_INLINE_LAMBDA { hn::StoreU(sum[r][t], kF, &sums[r][t][lane]); });
    });
  }
}

/// A rectangle of outputs, and the columns that are being added to it.
struct Block {
  size_t row, num_rows;
  size_t token, num_tokens;
  size_t col, num_cols;
};

/// Adds the block's columns to the sums of kTileRows rows from block row `r` on. Rows beyond the
/// matrix are computed from whatever the buffer holds, and never stored.
template <class Rows>
HWY_INLINE void AddRowTile(const MatMulArgs& args, const Block& block, size_t r,
                           ManyTokensBuffer& buffer) {
  const size_t rows = std::min(kTileRows, block.num_rows - r);
  for (size_t i = 0; i < rows; ++i) {
    const Rows row(args.w, block.row + r + i);
    DecodePacked(row, block.col, block.num_cols, i, buffer.weights);
  }
  const size_t cols = PackedCols(block.num_cols);
  size_t t = 0;
  const auto tokens_at = [&](size_t index) {
    return args.x + (block.token + index) * args.x_stride + block.col;
  };
  const auto sums_at = [&](size_t index) {
    return reinterpret_cast<float(*)[kBlockTokens][kLanes]>(&buffer.sums[r][index]);
  };
  for (; t + kTileTokens <= block.num_tokens; t += kTileTokens) {
    ProductTile<kTileTokens>(buffer.weights, tokens_at(t), args.x_stride, cols, sums_at(t));
  }
  for (; t < block.num_tokens; ++t) {
    ProductTile<1>(buffer.weights, tokens_at(t), args.x_stride, cols, sums_at(t));
  }
}

template <class Rows>
void ManyTokensBlock(const MatMulArgs& args, Block block, ManyTokensBuffer& buffer) {
  std::memset(buffer.sums, 0, sizeof(buffer.sums));
  for (block.col = 0; block.col < args.w.cols; block.col += kBlockCols) {
    block.num_cols = std::min(kBlockCols, args.w.cols - block.col);
    for (size_t r = 0; r < block.num_rows; r += kTileRows) AddRowTile<Rows>(args, block, r, buffer);
  }
  for (size_t t = 0; t < block.num_tokens; ++t) {
    float* y = args.y + (block.token + t) * args.y_stride + block.row;
    for (size_t r = 0; r < block.num_rows; ++r) {
      Lanes16 sum;
      Unroll<kParts>([&](auto p) THIMBLE_INLINE_LAMBDA {
        sum.part[p] = hn::LoadU(kF, &buffer.sums[r][t][p * kVector]);
      });
      y[r] = SumOfLanes(sum);
    }
  }
}

template <class Rows>
void ManyTokens(const MatMulArgs& args) {
  ManyTokensBuffer buffer;
  std::memset(buffer.weights, 0, sizeof(buffer.weights));
  Block block{};
  for (block.row = 0; block.row < args.w.rows; block.row += kBlockRows) {
    block.num_rows = std::min(kBlockRows, args.w.rows - block.row);
    for (block.token = 0; block.token < args.num_tokens; block.token += kBlockTokens) {
      block.num_tokens = std::min(kBlockTokens, args.num_tokens - block.token);
      ManyTokensBlock<Rows>(args, block, buffer);
    }
  }
}

// ---- all formats and numbers of tokens

template <class Rows>
void MatMulRows(const MatMulArgs& args) {
  switch (args.num_tokens) {
    case 1:
      return FewTokens<Rows, 1>(args);
    case 2:
      return FewTokens<Rows, 2>(args);
    case 3:
      if constexpr (kFewTokens >= 3) return FewTokens<Rows, 3>(args);
      break;
    case 4:
      if constexpr (kFewTokens >= 4) return FewTokens<Rows, 4>(args);
      break;
    default:
      break;
  }
  ManyTokens<Rows>(args);
}

/// Coded rows are decoded a few at a time into memory that stays in the second-level cache, then
/// multiplied as BF16. The scratch is the largest on a compute thread's stack, for which the memory
/// plan has 256 KiB.
void MatMulCoded(const MatMulArgs& args) {
#if HWY_TARGET == HWY_AVX3_DL
  switch (args.num_tokens) {
    case 1:
      return FewTokensCoded<1>(args);
    case 2:
      return FewTokensCoded<2>(args);
    case 3:
      return FewTokensCoded<3>(args);
    case 4:
      return FewTokensCoded<4>(args);
    default:
      break;
  }
#endif
  constexpr size_t kDecodedRows = 8;
  alignas(64) uint16_t scratch[kMaxCodedCols];
  const size_t fit = kMaxCodedCols / args.w.cols;
  MatMulArgs part = args;
  part.w = {WeightFormat::kBF16, 0, args.w.cols, reinterpret_cast<const uint8_t*>(scratch)};
  for (size_t row = 0; row < args.w.rows; row += part.w.rows) {
    part.w.rows = std::min({fit, kDecodedRows, args.w.rows - row});
    part.y = args.y + row;
    DecodeCoded(args.w, row, part.w.rows, scratch);
    MatMulRows<BF16Rows>(part);
  }
}

void MatMulMx(const MatMulArgs& args) {
#if HWY_TARGET == HWY_AVX3_DL
  if (args.num_tokens == 1 && args.w.cols >= kMxRun * kGroup) return OneTokenMx(args);
#endif
  MatMulRows<MxRows>(args);
}

void MatMul(const MatMulArgs& args) noexcept {
  switch (args.w.format) {
    case WeightFormat::kBF16:
      return MatMulRows<BF16Rows>(args);
    case WeightFormat::kF32:
      return MatMulRows<F32Rows>(args);
    case WeightFormat::kMXFP4:
      return MatMulMx(args);
    case WeightFormat::kQ8:
      return MatMulRows<Q8Rows>(args);
    case WeightFormat::kCodedBF16:
      return MatMulCoded(args);
  }
}

void PackActivations(const float* x, size_t cols, float* packed) noexcept {
  for (size_t c = 0; c < cols; c += kGroup) {
    const size_t count = std::min(kGroup, cols - c);
    for (size_t i = 0; i < kGroup; ++i) {
      packed[c + i % 2 * kLanes + i / 2] = i < count ? x[c + i] : 0.0f;
    }
  }
}

// ---- natural order

/// Columns summed at once by TransposedTile: four times sixteen.
constexpr size_t kTransposedParts = kVector == 1 ? 4 : 4 * kParts / (kManyRegisters ? 1 : 2);

/// y[c] for kVectors vectors of columns from `col` on.
template <class Rows, size_t kVectors>
void TransposedTile(const WeightMatrix& w, const float* x, size_t col, float* y) {
  V sum[kVectors];
  Unroll<kVectors>([&](auto i) THIMBLE_INLINE_LAMBDA { sum[i] = hn::Zero(kF); });
  const uint8_t* from = w.data + col * Rows::kElementBytes;
  for (size_t r = 0; r < w.rows; ++r, from += w.RowBytes()) {
    const V factor = hn::Set(kF, x[r]);
    Unroll<kVectors>([&](auto i) THIMBLE_INLINE_LAMBDA {
      const V weights = Rows::LoadNatural(from + i * kVector * Rows::kElementBytes);
      sum[i] = hn::MulAdd(factor, weights, sum[i]);
    });
  }
  Unroll<kVectors>([&](auto i)
                       THIMBLE_INLINE_LAMBDA { hn::StoreU(sum[i], kF, y + col + i * kVector); });
}

/// y[c] for the last columns, fewer than a vector.
template <class Rows>
void TransposedTail(const WeightMatrix& w, const float* x, size_t col, float* y) {
  const size_t count = w.cols - col;
  V sum = hn::Zero(kF);
  for (size_t r = 0; r < w.rows; ++r) {
    const uint8_t* from = w.data + r * w.RowBytes() + col * Rows::kElementBytes;
    const PaddedGroup group(from, count * Rows::kElementBytes);
    sum = hn::MulAdd(hn::Set(kF, x[r]), Rows::LoadNatural(group.bytes), sum);
  }
  StoreFirst(sum, y + col, count);
}

template <class Rows>
void TransposedRows(const WeightMatrix& w, const float* x, float* y) {
  constexpr size_t kStep = kTransposedParts * kVector;
  size_t col = 0;
  for (; col + kStep <= w.cols; col += kStep) TransposedTile<Rows, kTransposedParts>(w, x, col, y);
  for (; col + kVector <= w.cols; col += kVector) TransposedTile<Rows, 1>(w, x, col, y);
  if (col < w.cols) TransposedTail<Rows>(w, x, col, y);
}

void TransposedMatVec(const WeightMatrix& w, const float* x, float* y) noexcept {
  if (w.format == WeightFormat::kBF16) return TransposedRows<BF16Rows>(w, x, y);
  TransposedRows<F32Rows>(w, x, y);
}

template <class Rows>
void DecodeNatural(const WeightMatrix& w, float* out) {
  const size_t elements = w.rows * w.cols;
  size_t i = 0;
  for (; i + kVector <= elements; i += kVector) {
    hn::StoreU(Rows::LoadNatural(w.data + i * Rows::kElementBytes), kF, out + i);
  }
  if (i == elements) return;
  const PaddedGroup group(w.data + i * Rows::kElementBytes, (elements - i) * Rows::kElementBytes);
  StoreFirst(Rows::LoadNatural(group.bytes), out + i, elements - i);
}

template <class Rows>
void DecodeGroups(const WeightMatrix& w, float* out) {
  for (size_t r = 0; r < w.rows; ++r) {
    const Rows row(w, r);
    for (size_t g = 0; g < w.cols / kGroup; ++g, out += kGroup) {
      Unroll<kParts>([&](auto p) THIMBLE_INLINE_LAMBDA {
        V even, odd;
        row.Load(0, g, p, even, odd);
        hn::StoreInterleaved2(even, odd, kF, out + p * 2 * kVector);
      });
    }
  }
}

void DecodeCodedNatural(const WeightMatrix& w, float* out) {
  alignas(64) uint16_t row[kMaxCodedCols];
  for (size_t r = 0; r < w.rows; ++r, out += w.cols) {
    DecodeCoded(w, r, 1, row);
    DecodeNatural<BF16Rows>({WeightFormat::kBF16, 1, w.cols, reinterpret_cast<const uint8_t*>(row)},
                            out);
  }
}

void Decode(const WeightMatrix& w, float* out) noexcept {
  switch (w.format) {
    case WeightFormat::kBF16:
      return DecodeNatural<BF16Rows>(w, out);
    case WeightFormat::kF32:
      return DecodeNatural<F32Rows>(w, out);
    case WeightFormat::kMXFP4:
      return DecodeGroups<MxRows>(w, out);
    case WeightFormat::kQ8:
      return DecodeGroups<Q8Rows>(w, out);
    case WeightFormat::kCodedBF16:
      return DecodeCodedNatural(w, out);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
