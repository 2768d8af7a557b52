#pragma once

#include <cstddef>
#include <cstdint>

namespace thimble {

/// How the elements of a weight matrix are stored.
enum class WeightFormat : uint8_t {
  kBF16,
  kF32,
  kMXFP4,  // 4-bit E2M1 codes, low nibble first, one E8M0 scale for each 32 elements of a row
};

/// Number of input elements that share one E8M0 scale (OCP Microscaling Formats, MXFP4).
inline constexpr size_t kMxGroup = 32;

/// Borrowed view of a row-major weight matrix W[rows, cols] in its stored form. The bytes need no
/// alignment: they lie wherever a read put them. Multiplying by the view is the kernels' business.
struct WeightMatrix {
  WeightFormat format = WeightFormat::kBF16;
  size_t rows = 0;
  size_t cols = 0;                  // input elements; a multiple of kMxGroup for kMXFP4
  const uint8_t* data = nullptr;    // BF16 or F32 elements (little-endian), or packed codes
  const uint8_t* scales = nullptr;  // kMXFP4 only: [rows, cols / kMxGroup]

  /// Bytes of one row of `data`.
  constexpr size_t RowBytes() const {
    switch (format) {
      case WeightFormat::kBF16:
        return cols * 2;
      case WeightFormat::kF32:
        return cols * 4;
      case WeightFormat::kMXFP4:
        return cols / 2;
    }
    return 0;
  }

  /// Rows [first, first + count). The caller keeps first + count <= rows.
  constexpr WeightMatrix Rows(size_t first, size_t count) const {
    WeightMatrix part = *this;
    part.rows = count;
    part.data = data + first * RowBytes();
    if (scales != nullptr) part.scales = scales + first * (cols / kMxGroup);
    return part;
  }
};

}  // namespace thimble
