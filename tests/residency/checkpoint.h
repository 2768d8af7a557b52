#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/model_config.h"
#include "format/tensor_role.h"
#include "format/tensor_store.h"
#include "model/weights.h"
#include "support/checkpoint_builder.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {

/// A tensor of the trunk in reading order.
struct TrunkTensor {
  TensorAddress address;
  TensorExtent extent;
  size_t granule;  // rows that must not be parted
};

/// A small checkpoint on disk, and all of its bytes in memory to compare with.
class Checkpoint {
 public:
  explicit Checkpoint(const CheckpointBuilder& builder) {
    builder.Write(dir_.path());
    config_ = ReadModelConfig(dir_.path());
    store_.emplace(TensorStore::Open(dir_.path(), config_));
    for (const ShardFile& file : store_->files()) {
      paths_.push_back(file.path);
      files_.push_back(ReadBytes(file.path));
    }
  }

  const ModelConfig& config() const { return config_; }
  const TensorStore& store() const { return *store_; }
  const std::vector<std::filesystem::path>& paths() const { return paths_; }

  /// The bytes of a file.
  std::string_view Bytes(uint32_t file, uint64_t offset, uint64_t bytes) const {
    return std::string_view(files_[file]).substr(offset, bytes);
  }
  std::string_view Bytes(const TensorExtent& extent) const {
    return Bytes(extent.file, extent.offset, extent.Bytes());
  }

  /// What a sweep reads, in order.
  std::vector<TrunkTensor> Trunk(bool with_head) const {
    std::vector<TrunkTensor> trunk;
    const auto add = [&](size_t layer, TensorRole role, const TensorExtent& extent) {
      const size_t granule = IsMatrix(role) ? RowGranule(config_, role) : extent.rows;
      trunk.push_back({{layer, role}, extent, granule});
    };
    for (size_t layer = 0; layer < config_.num_layers(); ++layer) {
      for (const TensorSpec& spec : LayerTensors(config_, config_.layers[layer])) {
        add(layer, spec.role, store_->Layer(layer, spec.role));
      }
    }
    if (!with_head) return trunk;
    for (const TensorSpec& spec : GlobalTensors(config_)) {
      if (spec.role == TensorRole::kEmbedding) continue;
      add(kNoLayer, spec.role, store_->Global(spec.role));
    }
    return trunk;
  }

  std::vector<size_t> MoeLayers() const {
    std::vector<size_t> layers;
    for (size_t layer = 0; layer < config_.num_layers(); ++layer) {
      if (config_.layers[layer].feed_forward == FeedForwardKind::kMoe) layers.push_back(layer);
    }
    return layers;
  }

 private:
  TempDir dir_;
  ModelConfig config_;
  std::optional<TensorStore> store_;
  std::vector<std::filesystem::path> paths_;
  std::vector<std::string> files_;
};

/// One small checkpoint of each kind, made once.
inline const Checkpoint& SmallCheckpoint(Architecture architecture) {
  static const Checkpoint k3(CheckpointBuilder::KimiK3());
  static const Checkpoint kimi_linear(CheckpointBuilder::KimiLinear());
  return architecture == Architecture::kKimiK3 ? k3 : kimi_linear;
}

inline std::string ArchitectureName(Architecture architecture) {
  return architecture == Architecture::kKimiK3 ? "KimiK3" : "KimiLinear";
}

/// The bytes that a matrix borrows.
inline std::string_view DataOf(const WeightMatrix& matrix) {
  return {reinterpret_cast<const char*>(matrix.data), matrix.rows * matrix.RowBytes()};
}
inline std::string_view ScalesOf(const WeightMatrix& matrix) {
  if (matrix.scales == nullptr) return {};
  return {reinterpret_cast<const char*>(matrix.scales), matrix.rows * (matrix.cols / kMxGroup)};
}

}  // namespace thimble
