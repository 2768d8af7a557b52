#include "pack/extent_encoder.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "codec/coded_bf16.h"
#include "codec/coded_scales.h"
#include "kernels/decode_group.h"

namespace thimble {

size_t ExtentEncoder::Read(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) {
  if (use.coded_scales) {
    const uint64_t scales = ScalesOffset(use);
    if (offset < scales) return ReadPlain(use, offset, scales, out);
    if (offset == scales) CodeScales(use);
    return TakeCoded(out);
  }
  const ContainerTensor* tensor = TensorOf(use, manifest_);
  if (tensor == nullptr || tensor->group_rows == 0) return ReadPlain(use, offset, use.bytes, out);
  if (offset == 0) {
    coded_.clear();
    taken_ = 0;
    next_row_ = 0;
  }
  if (taken_ == coded_.size() && !NextGroup(use, *tensor)) return 0;
  return TakeCoded(out);
}

size_t ExtentEncoder::ReadPlain(const ExtentUse& use, uint64_t offset, uint64_t end,
                                std::span<std::byte> out) {
  const auto part = out.first(std::min<uint64_t>(out.size(), end - offset));
  if (!part.empty()) source_.Read(use, offset, part);
  return part.size();
}

size_t ExtentEncoder::TakeCoded(std::span<std::byte> out) {
  const size_t bytes = std::min(out.size(), coded_.size() - taken_);
  std::memcpy(out.data(), coded_.data() + taken_, bytes);
  taken_ += bytes;
  return bytes;
}

void ExtentEncoder::CodeScales(const ExtentUse& use) {
  scales_.resize(use.bytes - ScalesOffset(use));
  source_.Read(use, ScalesOffset(use), std::as_writable_bytes(std::span(scales_)));
  coded_.clear();
  taken_ = 0;
  AppendCodedScales(scales_, &coded_);
  std::vector<uint8_t> decoded(scales_.size());
  if (!DecodeScales(coded_, decoded) || decoded != scales_) FailCompare(use);
  // A size below that of plain scales says that they are coded.
  if (coded_.size() >= scales_.size()) coded_ = scales_;
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

void ExtentEncoder::CheckGroup(const ExtentUse& use, size_t rows, size_t cols) {
  if (!DecodeGroup(coded_, rows, cols, &decoded_) || decoded_ != elements_) FailCompare(use);
}

void ExtentEncoder::FailCompare(const ExtentUse& use) const {
  throw Error(ErrorCode::kRuntime, Describe(use, manifest_) +
                                       ": what was coded decodes to other bytes; the machine's "
                                       "memory may be faulty: test it, then run the same command "
                                       "again");
}

}  // namespace thimble
