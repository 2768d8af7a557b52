#include "pack/extent_encoder.h"

#include <algorithm>
#include <cstring>

#include "base/coded_bf16.h"
#include "base/error.h"
#include "base/weight_matrix.h"
#include "kernels/kernels.h"

namespace thimble {

size_t ExtentEncoder::Read(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) {
  const ContainerTensor* tensor = TensorOf(use, manifest_);
  if (tensor == nullptr || tensor->group_rows == 0) {
    const auto part = out.first(std::min<uint64_t>(out.size(), use.bytes - offset));
    if (!part.empty()) source_.Read(use, offset, part);
    return part.size();
  }
  if (offset == 0) {
    coded_.clear();
    taken_ = 0;
    next_row_ = 0;
  }
  if (taken_ == coded_.size() && !NextGroup(use, *tensor)) return 0;
  const size_t bytes = std::min(out.size(), coded_.size() - taken_);
  std::memcpy(out.data(), coded_.data() + taken_, bytes);
  taken_ += bytes;
  return bytes;
}

bool ExtentEncoder::NextGroup(const ExtentUse& use, const ContainerTensor& tensor) {
  const size_t rows = std::min(tensor.group_rows, tensor.rows - next_row_);
  if (rows == 0) return false;
  elements_.resize(rows * tensor.cols);
  source_.Read(use, uint64_t{next_row_} * tensor.cols * sizeof(uint16_t),
               std::as_writable_bytes(std::span(elements_)));
  coded_.clear();
  taken_ = 0;
  AppendCodedGroup(elements_.data(), rows, tensor.cols, &coded_);
  CheckGroup(use, rows, tensor.cols);
  next_row_ += rows;
  return true;
}

void ExtentEncoder::CheckGroup(const ExtentUse& use, size_t rows, size_t cols) const {
  const auto end = static_cast<uint32_t>(coded_.size());
  const CodedRows coded = {.group_ends = &end, .group_rows = rows, .tensor_rows = rows};
  const WeightMatrix matrix = {WeightFormat::kCodedBF16, rows, cols, coded_.data(), nullptr, coded};
  bool same = IsSoundGroup(coded_.data(), coded_.size(), rows, cols);
  std::vector<float> row(same ? cols : 0);
  for (size_t r = 0; same && r < rows; ++r) {
    BestKernels().decode(matrix.Rows(r, 1), row.data());
    for (size_t c = 0; c < cols; ++c) {
      uint32_t bits;
      std::memcpy(&bits, &row[c], sizeof(bits));
      same = same && bits == uint32_t{elements_[r * cols + c]} << 16;
    }
  }
  if (same) return;
  throw Error(ErrorCode::kRuntime, Describe(use, manifest_) +
                                       ": what was coded decodes to other bytes; the machine's "
                                       "memory may be faulty: test it, then run the same command "
                                       "again");
}

}  // namespace thimble
