#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/thread_pool.h"
#include "pack/weight_loss.h"

namespace thimble {

/// A matrix of BF16 elements in memory, row-major.
struct BF16Matrix {
  const uint16_t* elements = nullptr;
  size_t rows = 0;
  size_t cols = 0;
};

/// Bytes of a matrix as MXFP4: half a byte an element, and a scale for each 32 of them.
uint64_t Mxfp4Bytes(const BF16Matrix& matrix);

/// Quantises a matrix, whose columns are a multiple of 32, to MXFP4 as OCP Microscaling Formats 1.0
/// has it: fills `out` with Mxfp4Bytes(matrix), all codes [rows, cols / 2], then all scales [rows,
/// cols / 32]. A group's scale is, of the power of two that brings its largest magnitude below 8,
/// its half and its double, the one with the least squared error, the first of these where they are
/// equal; elements are rounded to the nearest code, ties to the even one, beyond 6 to 6. Never
/// writes a negative zero.
///
/// Every group is decoded again by the kernels and compared; nothing is returned where one differs,
/// which faulty memory makes happen. The result does not depend on the number of threads. Weights
/// that are not finite make the loss so.
std::optional<WeightLoss> QuantizeMxfp4(const BF16Matrix& matrix, ThreadPool& pool, uint8_t* out);

/// The same to Q8, eight bits and a half an element: fills `out` row by row (codec/weight_matrix.h,
/// WeightFormat::kQ8), Q8RowBytes(matrix.cols) each. A group's scale is a 127th of its largest
/// magnitude, rounded up to BF16 so that the codes stay within 127; codes are the nearest, ties to
/// even.
std::optional<WeightLoss> QuantizeQ8(const BF16Matrix& matrix, ThreadPool& pool, uint8_t* out);

}  // namespace thimble
