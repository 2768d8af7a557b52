#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace thimble {

/// How the elements of a weight matrix are stored.
enum class WeightFormat : uint8_t {
  kBF16,
  kF32,
  kMXFP4,      // 4-bit E2M1 codes, low nibble first, one E8M0 scale for each 32 elements of a row
  kQ8,         // lossy: a row's signed eight-bit codes, then a BF16 scale for each 32 of them
  kCodedBF16,  // BF16 without loss in fewer bytes, in groups of rows (codec/coded_bf16.h)
};
inline constexpr size_t kNumWeightFormats = 5;

/// As it stands in machine-readable reports.
constexpr std::string_view NameOf(WeightFormat format) {
  constexpr std::array<std::string_view, kNumWeightFormats> kNames = {"bf16", "f32", "mxfp4", "q8",
                                                                      "coded_bf16"};
  return kNames[static_cast<size_t>(format)];
}

/// Where the rows of a kCodedBF16 view lie. Groups have `group_rows` rows, the last one of a tensor
/// perhaps fewer.
struct CodedRows {
  const uint32_t* group_ends = nullptr;  // [groups of the tensor]: bytes from the tensor's start
  size_t group_rows = 0;
  size_t tensor_rows = 0;
  size_t first_row = 0;      // row 0 of the view, as a row of the tensor
  uint64_t data_offset = 0;  // from the tensor's start to `data`, where a group starts

  constexpr size_t GroupOf(size_t row) const { return (first_row + row) / group_rows; }
  constexpr uint64_t GroupStart(size_t group) const {
    return group == 0 ? 0 : group_ends[group - 1];
  }
  constexpr size_t RowsOfGroup(size_t group) const {
    const size_t rest = tensor_rows - group * group_rows;
    return rest < group_rows ? rest : group_rows;
  }
};

/// Number of input elements that share one E8M0 scale (OCP Microscaling Formats, MXFP4).
inline constexpr size_t kMxGroup = 32;

/// Number of input elements that share one scale of a kQ8 matrix; its columns are a multiple.
inline constexpr size_t kQ8Group = 32;

constexpr uint64_t Q8RowBytes(size_t cols) { return cols + cols / kQ8Group * 2; }

/// Bytes of a row of `cols` elements as a trunk's tensor is stored, where it is not coded.
constexpr uint64_t RowBytesOf(DType dtype, size_t cols) {
  return dtype == DType::kQ8 ? Q8RowBytes(cols) : cols * SizeOf(dtype);
}

/// Borrowed view of a row-major weight matrix W[rows, cols] in its stored form. The bytes need no
/// alignment: they lie wherever a read put them. Multiplying by the view is the kernels' business.
struct WeightMatrix {
  WeightFormat format = WeightFormat::kBF16;
  size_t rows = 0;
  size_t cols = 0;                  // input elements; a multiple of 32 for kMXFP4 and kQ8
  const uint8_t* data = nullptr;    // elements (little-endian), codes, or the first group
  const uint8_t* scales = nullptr;  // kMXFP4 only: [rows, cols / kMxGroup]
  CodedRows coded = {};             // kCodedBF16 only

  /// Bytes of one row of `data`; 0 for kCodedBF16, whose rows differ.
  constexpr size_t RowBytes() const {
    switch (format) {
      case WeightFormat::kBF16:
        return cols * 2;
      case WeightFormat::kF32:
        return cols * 4;
      case WeightFormat::kMXFP4:
        return cols / 2;
      case WeightFormat::kQ8:
        return Q8RowBytes(cols);
      case WeightFormat::kCodedBF16:
        return 0;
    }
    return 0;
  }

  /// Rows [first, first + count). The caller keeps first + count <= rows.
  constexpr WeightMatrix Rows(size_t first, size_t count) const {
    WeightMatrix part = *this;
    part.rows = count;
    part.data = data + first * RowBytes();
    part.coded.first_row += first;
    if (scales != nullptr) part.scales = scales + first * (cols / kMxGroup);
    return part;
  }
};

}  // namespace thimble
