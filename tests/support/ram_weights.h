#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "format/model_config.h"
#include "format/tensor_store.h"
#include "io/file.h"
#include "kernels/kernels.h"
#include "model/weights.h"

namespace thimble {

/// A model's weights in plain memory, read from a checkpoint in the simplest way there is: what the
/// streamed sources must equal. Rows come in blocks of at most `block_rows`, experts in the order
/// of the request or in its reverse: neither may change a result.
class RamWeights final : public LayerSource, public ExpertSource, private Lender {
 public:
  RamWeights(const ModelConfig& config, const TensorStore& store) : config_(config), store_(store) {
    for (const ShardFile& file : store.files()) {
      const File opened = File::Open(file.path);
      files_.emplace_back(opened.size());
      opened.ReadAt(0, opened.size(), files_.back().data());
    }
  }

  size_t block_rows = SIZE_MAX;
  bool reverse_experts = false;

  void BeginSweep(bool) override {}

  Lease<WeightMatrix> Acquire(const TensorAddress& tensor, size_t first_row) override {
    const TensorExtent& extent = tensor.layer == kNoLayer ? store_.Global(tensor.role)
                                                          : store_.Layer(tensor.layer, tensor.role);
    const size_t granule = IsMatrix(tensor.role) ? RowGranule(config_, tensor.role) : extent.rows;
    const size_t wanted = std::max(granule, block_rows / granule * granule);
    const size_t rows = std::min(wanted, extent.rows - first_row);
    ++num_lent_;
    return {View(extent).Rows(first_row, rows), this, 0};
  }

  void ReadEmbeddings(std::span<const uint32_t> tokens, float* out) override {
    const WeightMatrix table = View(store_.Global(TensorRole::kEmbedding));
    for (size_t i = 0; i < tokens.size(); ++i) {
      BestKernels().decode(table.Rows(tokens[i], 1), out + i * config_.hidden_size);
    }
  }

  void Request(size_t layer, std::span<const uint32_t> experts) override {
    layer_ = layer;
    num_queued_ = experts.size();
    std::copy(experts.begin(), experts.end(), queue_.begin());
    if (!reverse_experts) std::reverse(queue_.begin(), queue_.begin() + Signed(num_queued_));
  }

  Lease<ExpertView> Next() override {
    const uint32_t expert = queue_[--num_queued_];
    ++num_lent_;
    return {ViewOf(expert), this, 0};
  }

  /// Leases that are out; 0 between sweeps.
  size_t num_lent() const { return num_lent_; }

 private:
  static std::ptrdiff_t Signed(size_t n) { return static_cast<std::ptrdiff_t>(n); }
  void Return(uint64_t) noexcept override { --num_lent_; }

  const uint8_t* At(uint32_t file, uint64_t offset) const { return files_[file].data() + offset; }

  WeightMatrix View(const TensorExtent& extent) const {
    const auto format = extent.dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBF16;
    return {format, extent.rows, extent.cols, At(extent.file, extent.offset), nullptr};
  }

  ExpertView ViewOf(uint32_t expert) const {
    const ExpertExtent extent = store_.Expert(layer_, expert);
    const size_t inner = config_.moe.inner_size;
    const size_t width = config_.ExpertWidth();
    const auto matrix = [&](size_t rows, size_t cols, ExpertTensor codes, ExpertTensor scales) {
      const ExpertPiece& data = extent[static_cast<size_t>(codes)];
      const ExpertPiece& scale = extent[static_cast<size_t>(scales)];
      return WeightMatrix{config_.moe.format, rows, cols, At(data.file, data.offset),
                          scale.bytes == 0 ? nullptr : At(scale.file, scale.offset)};
    };
    return {expert, matrix(inner, width, ExpertTensor::kGate, ExpertTensor::kGateScales),
            matrix(inner, width, ExpertTensor::kUp, ExpertTensor::kUpScales),
            matrix(width, inner, ExpertTensor::kDown, ExpertTensor::kDownScales)};
  }

  const ModelConfig& config_;
  const TensorStore& store_;
  std::vector<std::vector<uint8_t>> files_;
  size_t layer_ = 0;
  std::vector<uint32_t> queue_ = std::vector<uint32_t>(4096);
  size_t num_queued_ = 0;
  size_t num_lent_ = 0;
};

}  // namespace thimble
