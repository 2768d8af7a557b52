// Decodes BF16 rows that are stored without their redundancy (codec/coded_bf16.h). Compiled once
// for each SIMD target.

#if defined(THIMBLE_KERNELS_CODED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THIMBLE_KERNELS_CODED_INL_H_
#undef THIMBLE_KERNELS_CODED_INL_H_
#else
#define THIMBLE_KERNELS_CODED_INL_H_
#endif

#include <algorithm>

#include "codec/coded_bf16.h"
#include "codec/weight_matrix.h"
#include "kernels/coded_span-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kSpanBytes = kCodedSpan + kCodedLowBytes + kCodedHighBytes;

/// Rows [begin, end) of a group of `rows`. Mapped weights may change after they were checked:
/// nothing that they say of themselves decides what memory is read.
struct GroupPart {
  CodedGroup group;
  const uint8_t* group_end;
  size_t rows, cols;
  size_t begin, end;

  size_t count() const { return end - begin; }
  bool plain() const { return group.bytes + MaxCodedGroupBytes(rows, cols) == group_end; }
  const uint8_t* CodedRow(size_t row) const { return group.CodedRow(row, rows, cols); }
  /// Of this row; up to the end of the group.
  Escapes EscapesOf(size_t row) const {
    const uint8_t* all = CodedRow(rows);
    return {all + std::min<ptrdiff_t>(group.EscapesBefore(row), group_end - all), group_end};
  }
};

/// Of rows [row, row + count) of a kCodedBF16 matrix the first ones, as far as they lie in one
/// group.
HWY_INLINE GroupPart FirstPart(const WeightMatrix& w, size_t row, size_t count) {
  const CodedRows& coded = w.coded;
  const size_t index = coded.GroupOf(row);
  const size_t rows = coded.RowsOfGroup(index);
  const uint64_t start = coded.GroupStart(index);
  const uint8_t* bytes = w.data + (start - coded.data_offset);
  const size_t begin = coded.first_row + row - index * coded.group_rows;
  return {{bytes}, bytes + (coded.group_ends[index] - start),
          rows,    w.cols,
          begin,   std::min(rows, begin + count)};
}

HWY_INLINE void DecodeCodedRow(const ExponentTable& table, const uint8_t* row, Escapes escapes,
                               size_t cols, uint16_t* out) {
  for (size_t first = 0; first < cols; first += kCodedSpan, row += kSpanBytes) {
    DecodeSpan(table, row, std::min(kCodedSpan, cols - first), escapes, out + first);
  }
}

/// Rows [first, first + count) of a kCodedBF16 matrix as BF16, [count, cols].
void DecodeCoded(const WeightMatrix& w, size_t first, size_t count, uint16_t* out) noexcept {
  for (size_t row = first; row < first + count;) {
    const GroupPart part = FirstPart(w, row, first + count - row);
    const ExponentTable table(part.group.exponents());
    for (size_t i = part.begin; i < part.end; ++i, out += w.cols) {
      if (part.plain()) {
        std::memcpy(out, part.group.PlainRow(i, w.cols), w.cols * sizeof(uint16_t));
      } else {
        DecodeCodedRow(table, part.CodedRow(i), part.EscapesOf(i), w.cols, out);
      }
    }
    row += part.count();
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thimble
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
