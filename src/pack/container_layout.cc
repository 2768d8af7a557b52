#include "pack/container_layout.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "codec/coded_bf16.h"

namespace thimble {
namespace {

// Places in a coded tensor are 32 bits, heads of groups included.
constexpr uint64_t kMaxCodedPlainBytes = uint64_t{4000} << 20;

class Builder {
 public:
  Builder(const ModelConfig& config, const LayoutOptions& options)
      : config_(config), options_(options) {
    manifest_.architecture = config.architecture;
    manifest_.source = options.source;
    manifest_.lossy = options.lossy;
    manifest_.coded_scales = options.code && config.moe.format == WeightFormat::kMXFP4;
    for (const auto& dir : options.extra) manifest_.directories.push_back(dir.string());
    manifest_.layers.resize(config.num_layers());
  }

  ContainerLayout Build() {
    AddCore();
    for (size_t layer = 0; layer < config_.num_layers(); ++layer) {
      if (IsStored(layer)) AddExperts(layer);
    }
    for (size_t layer = 0; layer < config_.num_layers(); ++layer) {
      if (IsStored(layer)) continue;
      manifest_.layers[layer] = manifest_.layers[SharingOf(layer).same_as];
      manifest_.shared_extents = true;
    }
    manifest_.num_extents = extents_.size();
    std::vector<ExtentUse> uses = ExtentUses(manifest_, config_, "the new container");
    return {std::move(manifest_), std::move(extents_), std::move(uses)};
  }

 private:
  LayerSharing SharingOf(size_t layer) const {
    return options_.sharing.empty() ? LayerSharing{.same_as = layer} : options_.sharing.at(layer);
  }
  bool IsStored(size_t layer) const { return SharingOf(layer).same_as == layer; }

  void StartFile(const std::string& name, size_t directory) {
    manifest_.files.push_back({name, directory, 0});
  }

  size_t AddExtent(uint64_t bytes, bool starts_group) {
    uint64_t& size = manifest_.files.back().size;
    uint64_t offset = starts_group ? size : extents_.back().offset + extents_.back().bytes;
    extents_.push_back({static_cast<uint32_t>(manifest_.files.size() - 1), offset, bytes, 0});
    size = RoundUp(offset + bytes, kContainerAlignment);
    return extents_.size() - 1;
  }

  ContainerTensor Stored(size_t layer, const TensorSpec& spec) const {
    ContainerTensor tensor = options_.stored(layer, spec);
    if (options_.q8_trunk && MayBeQuantized(spec.role) && tensor.dtype == DType::kBF16 &&
        tensor.cols % kQ8Group == 0) {
      tensor.dtype = DType::kQ8;
      return tensor;
    }
    const bool codable = MayBeCoded(spec.role) && tensor.dtype == DType::kBF16 &&
                         tensor.cols <= kMaxCodedCols && tensor.PlainBytes() <= kMaxCodedPlainBytes;
    if (options_.code && codable) {
      tensor.group_rows = std::min(CodedGroupRows(tensor.cols), tensor.rows);
    }
    return tensor;
  }

  void AddGlobal(size_t index, const TensorSpec& spec) {
    ContainerGlobal& global = manifest_.globals[index];
    global.tensor = Stored(LayoutOptions::kNoLayer, spec);
    global.extent = AddExtent(global.tensor.MaxBytes(), true);
  }

  void AddCore() {
    StartFile(kCoreFile, 0);
    const std::vector<TensorSpec> globals = GlobalTensors(config_);
    manifest_.globals.resize(globals.size());
    // The embedding is read by rows; the rest follows the layers, as the forward pass reads it.
    AddGlobal(0, globals[0]);
    for (size_t layer = 0; layer < config_.num_layers(); ++layer) {
      if (IsStored(layer)) AddLayer(layer);
    }
    for (size_t i = 1; i < globals.size(); ++i) AddGlobal(i, globals[i]);
  }

  void AddLayer(size_t layer) {
    ContainerLayer& entry = manifest_.layers[layer];
    for (const TensorSpec& spec : LayerTensors(config_, config_.layers[layer])) {
      const ContainerTensor tensor = Stored(layer, spec);
      const size_t extent = AddExtent(tensor.MaxBytes(), entry.tensors.empty());
      if (entry.tensors.empty()) entry.first_extent = extent;
      entry.tensors.push_back(tensor);
    }
  }

  void AddExperts(size_t layer) {
    if (config_.layers[layer].feed_forward != FeedForwardKind::kMoe) return;
    const std::string number = std::to_string(layer);
    StartFile(
        "experts-" + std::string(3 - std::min<size_t>(number.size(), 3), '0') + number + ".bin",
        num_expert_files_++ % manifest_.directories.size());
    const uint64_t bytes = ExpertBytes(config_);
    ContainerLayer& entry = manifest_.layers[layer];
    entry.distinct_experts = std::min(SharingOf(layer).distinct_experts, config_.moe.num_experts);
    if (entry.distinct_experts < config_.moe.num_experts) manifest_.shared_extents = true;
    entry.first_expert = extents_.size();
    for (size_t i = 0; i < entry.distinct_experts; ++i) AddExtent(bytes, true);
  }

  const ModelConfig& config_;
  const LayoutOptions& options_;
  ContainerManifest manifest_;
  std::vector<ContainerExtent> extents_;
  size_t num_expert_files_ = 0;
};

}  // namespace

uint64_t ContainerLayout::TotalBytes() const {
  uint64_t bytes = 0;
  for (const ContainerFile& file : manifest.files) bytes += file.size;
  return bytes;
}

ContainerLayout LayOutContainer(const ModelConfig& config, const LayoutOptions& options) {
  return Builder(config, options).Build();
}

}  // namespace thimble
