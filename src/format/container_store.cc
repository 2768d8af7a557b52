// A TensorStore from a packed container.

#include <utility>

#include "format/container.h"
#include "format/tensor_store.h"

namespace thimble {

class TensorStore::ContainerBuilder {
 public:
  ContainerBuilder(const ModelConfig& config, const Container& container)
      : config_(config), container_(container), store_(config) {}

  TensorStore Build() {
    const ContainerManifest& manifest = container_.manifest;
    store_.group_ends_ = container_.table.group_ends;
    store_.lossy_ = manifest.lossy;
    if (manifest.coded_scales) store_.coded_scale_bytes_.resize(store_.experts_.size());
    for (size_t i = 0; i < manifest.files.size(); ++i) {
      store_.files_.push_back({container_.paths[i], manifest.files[i].size});
    }
    const std::vector<TensorSpec> globals = GlobalTensors(config_);
    for (size_t i = 0; i < globals.size(); ++i) {
      const ContainerGlobal& global = manifest.globals[i];
      store_.globals_[Index(globals[i])] = Extent(global.extent, global.tensor);
    }
    for (size_t layer = 0; layer < manifest.layers.size(); ++layer) AddLayer(layer);
    return std::move(store_);
  }

 private:
  static size_t Index(const TensorSpec& spec) { return static_cast<size_t>(spec.role); }

  TensorExtent Extent(size_t index, const ContainerTensor& tensor) const {
    const ContainerExtent& place = container_.table.extents[index];
    const bool coded = tensor.group_rows != 0;
    return {.file = place.file,
            .offset = place.offset,
            .dtype = tensor.dtype,
            .rows = tensor.rows,
            .cols = tensor.cols,
            .group_rows = tensor.group_rows,
            .group_ends = coded ? store_.group_ends_.data() + place.first_group : nullptr};
  }

  void AddLayer(size_t index) {
    const ContainerLayer& layer = container_.manifest.layers[index];
    const std::vector<TensorSpec> specs = LayerTensors(config_, config_.layers[index]);
    for (size_t i = 0; i < specs.size(); ++i) {
      store_.layers_[index][Index(specs[i])] = Extent(layer.first_extent + i, layer.tensors[i]);
    }
    if (layer.distinct_experts == 0) return;
    for (size_t expert = 0; expert < store_.num_experts_; ++expert) {
      AddExpert(container_.table.extents[layer.ExpertExtentIndex(expert)],
                store_.moe_index_[index] * store_.num_experts_ + expert);
    }
  }

  void AddExpert(const ContainerExtent& place, size_t row) {
    uint64_t offset = place.offset;
    for (const ExpertTensor tensor : kStoredExpertOrder) {
      const auto i = static_cast<size_t>(tensor);
      store_.experts_[row][i] = uint64_t{place.file} << kOffsetBits | offset;
      offset += store_.piece_bytes_[i];
    }
    const uint64_t plain_bytes = store_.expert_bytes_;
    if (place.bytes == plain_bytes) return;
    store_.coded_scale_bytes_[row] = place.bytes - (plain_bytes - ScaleBytesOf(plain_bytes));
  }

  const ModelConfig& config_;
  const Container& container_;
  TensorStore store_;
};

TensorStore TensorStore::OpenPacked(const std::filesystem::path& dir, const ModelConfig& config) {
  const Container container = OpenContainer(dir, config);
  return ContainerBuilder(config, container).Build();
}

}  // namespace thimble
