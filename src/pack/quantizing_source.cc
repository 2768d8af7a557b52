#include "pack/quantizing_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "base/cpu_topology.h"
#include "base/error.h"
#include "pack/quantize.h"

namespace thimble {
namespace {

// Rows that are quantised at a time, in bytes as given.
constexpr size_t kRowsBytes = size_t{4} << 20;

}  // namespace

QuantizingSource::QuantizingSource(const ModelConfig& config, const ContainerManifest& manifest,
                                   const WriteOptions& options, ExtentSource& source)
    : manifest_(manifest),
      q8_trunk_(options.q8_trunk),
      source_(source),
      pool_(UsablePhysicalCores()) {
  if (!options.mxfp4_experts) return;
  const size_t inner = config.moe.inner_size;
  const size_t width = config.ExpertWidth();
  projections_ = {{inner, width}, {width, inner}, {inner, width}};
}

const ContainerTensor* QuantizingSource::Q8TensorOf(const ExtentUse& use) const {
  const ContainerTensor* tensor = q8_trunk_ ? TensorOf(use, manifest_) : nullptr;
  return tensor != nullptr && tensor->dtype == DType::kQ8 ? tensor : nullptr;
}

void QuantizingSource::Read(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) {
  if (offset == 0) loss_ = {};
  const bool is_expert = use.kind == ExtentUse::Kind::kExpert && !projections_.empty();
  if (!is_expert && Q8TensorOf(use) == nullptr) return source_.Read(use, offset, out);
  if (offset == 0) {
    quantized_.clear();
    scales_.clear();
    taken_ = 0;
    next_ = 0;
    source_offset_ = 0;
  }
  while (!out.empty()) {
    if (taken_ == quantized_.size()) TakeNext(use);
    const size_t bytes = std::min(out.size(), quantized_.size() - taken_);
    std::memcpy(out.data(), quantized_.data() + taken_, bytes);
    taken_ += bytes;
    out = out.subspan(bytes);
  }
}

void QuantizingSource::TakeNext(const ExtentUse& use) {
  taken_ = 0;
  const bool is_expert = use.kind == ExtentUse::Kind::kExpert;
  if (is_expert && next_ == projections_.size()) {
    quantized_ = std::exchange(scales_, {});
    return;
  }
  QuantizeNext(use);
  if (!is_expert) return;
  const auto first_scale =
      quantized_.end() - static_cast<std::ptrdiff_t>(ScaleBytesOf(quantized_.size()));
  scales_.insert(scales_.end(), first_scale, quantized_.end());
  quantized_.erase(first_scale, quantized_.end());
}

void QuantizingSource::QuantizeNext(const ExtentUse& use) {
  const ContainerTensor* tensor = Q8TensorOf(use);
  Part part;
  if (tensor != nullptr) {
    const size_t fit = std::max<size_t>(1, kRowsBytes / (tensor->cols * sizeof(uint16_t)));
    part = {std::min(fit, tensor->rows - next_), tensor->cols};
    next_ += part.rows;
  } else {
    part = projections_.at(next_++);
  }
  elements_.resize(part.rows * part.cols);
  const auto bytes = std::as_writable_bytes(std::span(elements_));
  source_.Read(use, source_offset_, bytes);
  source_offset_ += bytes.size();
  const BF16Matrix matrix = {elements_.data(), part.rows, part.cols};
  quantized_.resize(tensor != nullptr ? part.rows * Q8RowBytes(part.cols) : Mxfp4Bytes(matrix));
  const std::optional<WeightLoss> loss = tensor != nullptr
                                             ? QuantizeQ8(matrix, pool_, quantized_.data())
                                             : QuantizeMxfp4(matrix, pool_, quantized_.data());
  if (!loss) {
    Fail(ErrorCode::kRuntime, use,
         "what was quantised decodes to other values; the machine's memory may be faulty: test it, "
         "then run the same command again");
  }
  loss_.Add(*loss);
  // Only now: damage of the source that its checksum shows is told as such.
  const bool is_last = next_ == (tensor != nullptr ? tensor->rows : projections_.size());
  if (is_last && !std::isfinite(loss_.weights)) {
    Fail(ErrorCode::kBadModel, use,
         "expected finite weights, found an infinite one or one that is no number, which cannot be "
         "quantised; download the model again, or leave --experts and --trunk out");
  }
}

void QuantizingSource::Fail(ErrorCode code, const ExtentUse& use, const std::string& what) const {
  throw Error(code, Describe(use, manifest_) + ": " + what);
}

}  // namespace thimble
