#include "kernels/decode_group.h"

#include <cstring>

#include "codec/coded_bf16.h"
#include "codec/weight_matrix.h"
#include "kernels/kernels.h"

namespace thimble {

bool DecodeGroup(std::span<const uint8_t> coded, size_t rows, size_t cols,
                 std::vector<uint16_t>* elements) {
  if (!IsSoundGroup(coded.data(), coded.size(), rows, cols)) return false;
  const auto end = static_cast<uint32_t>(coded.size());
  const CodedRows groups = {.group_ends = &end, .group_rows = rows, .tensor_rows = rows};
  const WeightMatrix matrix = {WeightFormat::kCodedBF16, rows, cols, coded.data(), nullptr, groups};
  elements->resize(rows * cols);
  std::vector<float> row(cols);
  for (size_t r = 0; r < rows; ++r) {
    BestKernels().decode(matrix.Rows(r, 1), row.data());
    for (size_t c = 0; c < cols; ++c) {
      uint32_t bits;
      std::memcpy(&bits, &row[c], sizeof(bits));
      (*elements)[r * cols + c] = static_cast<uint16_t>(bits >> 16);
    }
  }
  return true;
}

}  // namespace thimble
