#include "pack/quantizing_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/cpu_topology.h"
#include "base/error.h"
#include "pack/quantize.h"

namespace thimble {
namespace {

[[noreturn]] void FailExpert(ErrorCode code, const ExtentUse& use, const std::string& what) {
  throw Error(code, "layer " + std::to_string(use.layer) + ", expert " + std::to_string(use.item) +
                        ": " + what);
}

}  // namespace

QuantizingSource::QuantizingSource(const ModelConfig& config, const ContainerManifest& manifest,
                                   ExtentSource& source)
    : source_(source), pool_(UsablePhysicalCores()) {
  const bool experts = std::ranges::any_of(
      manifest.lossy, [](const LossyPart& part) { return part.part == kLossyExperts; });
  if (!experts) return;
  const size_t inner = config.moe.inner_size;
  const size_t width = config.ExpertWidth();
  projections_ = {{inner, width}, {width, inner}, {inner, width}};
}

void QuantizingSource::Read(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) {
  if (offset == 0) loss_ = {};
  if (use.kind != ExtentUse::Kind::kExpert || projections_.empty()) {
    return source_.Read(use, offset, out);
  }
  if (offset == 0) {
    quantized_.clear();
    taken_ = 0;
    next_ = 0;
    source_offset_ = 0;
  }
  while (!out.empty()) {
    if (taken_ == quantized_.size()) QuantizeNext(use);
    const size_t bytes = std::min(out.size(), quantized_.size() - taken_);
    std::memcpy(out.data(), quantized_.data() + taken_, bytes);
    taken_ += bytes;
    out = out.subspan(bytes);
  }
}

void QuantizingSource::QuantizeNext(const ExtentUse& use) {
  const auto [rows, cols] = projections_.at(next_++);
  elements_.resize(rows * cols);
  const auto bytes = std::as_writable_bytes(std::span(elements_));
  source_.Read(use, source_offset_, bytes);
  source_offset_ += bytes.size();
  const BF16Matrix matrix = {elements_.data(), rows, cols};
  quantized_.resize(Mxfp4Bytes(matrix));
  taken_ = 0;
  const std::optional<WeightLoss> loss = QuantizeMxfp4(matrix, pool_, quantized_.data());
  if (!loss) {
    FailExpert(ErrorCode::kRuntime, use,
               "what was quantised decodes to other values; the machine's memory may be faulty: "
               "test it, then run the same command again");
  }
  if (!std::isfinite(loss->weights)) {
    FailExpert(ErrorCode::kBadModel, use,
               "expected finite weights, found an infinite one or one that is no number, which "
               "cannot be quantised; download the model again, or leave --experts out");
  }
  loss_.Add(*loss);
}

}  // namespace thimble
