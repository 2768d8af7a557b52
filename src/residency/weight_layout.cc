#include "residency/weight_layout.h"

#include <algorithm>

#include "base/dtype.h"
#include "format/model_summary.h"
#include "residency/expert_cache.h"

namespace thimble {
namespace {

// A header of a multiple of eight bytes lies before the data, so that no tensor starts a page.
constexpr uint64_t kIdealFirstOffset = 8;

// Lists the trunk; place(address, spec) says where a tensor lies.
template <typename Place>
std::vector<TrunkEntry> ListTrunkWith(const ModelConfig& config, const Place& place) {
  std::vector<TrunkEntry> trunk;
  const auto add = [&](const TensorAddress& tensor, const TensorSpec& spec) {
    const TensorExtent extent = place(tensor, spec);
    const size_t granule = extent.is_coded()     ? extent.group_rows
                           : IsMatrix(spec.role) ? RowGranule(config, spec.role)
                                                 : extent.rows;
    trunk.push_back({tensor, extent, granule});
  };
  for (size_t layer = 0; layer < config.num_layers(); ++layer) {
    for (const TensorSpec& spec : LayerTensors(config, config.layers[layer])) {
      add({layer, spec.role}, spec);
    }
  }
  for (const TensorSpec& spec : GlobalTensors(config)) {
    if (spec.role != TensorRole::kEmbedding) add({kNoLayer, spec.role}, spec);
  }
  return trunk;
}

// Puts tensors back to back, into a file for each layer and one for the rest.
class IdealFiles {
 public:
  explicit IdealFiles(const ModelConfig& config)
      : config_(config), end_(config.num_layers() + 1, kIdealFirstOffset) {}

  TensorExtent Place(const TensorAddress& tensor, const TensorSpec& spec) {
    const size_t file = std::min(tensor.layer, config_.num_layers());
    const TensorExtent extent = {.file = static_cast<uint32_t>(file),
                                 .offset = end_[file],
                                 .dtype = PublishedType(config_, spec.role),
                                 .rows = spec.rows,
                                 .cols = spec.cols};
    end_[file] += extent.Bytes();
    return extent;
  }

  // Memory of the expert that alignment adds most to; they follow the trunk of their layer.
  uint64_t ExpertSlotBytes(uint64_t expert_bytes) const {
    uint64_t most = 0;
    for (size_t layer = 0; layer < config_.num_layers(); ++layer) {
      if (config_.layers[layer].feed_forward != FeedForwardKind::kMoe) continue;
      for (size_t expert = 0; expert < config_.moe.num_experts; ++expert) {
        const uint64_t offset = end_[layer] + expert * expert_bytes;
        most = std::max<uint64_t>(most, AlignedRead(0, offset, expert_bytes).bytes);
      }
    }
    return most;
  }

 private:
  const ModelConfig& config_;
  std::vector<uint64_t> end_;  // [file]
};

}  // namespace

std::vector<TrunkEntry> ListTrunk(const ModelConfig& config, const TensorStore& store) {
  return ListTrunkWith(config, [&](const TensorAddress& tensor, const TensorSpec&) {
    return tensor.layer == kNoLayer ? store.Global(tensor.role)
                                    : store.Layer(tensor.layer, tensor.role);
  });
}

WeightLayout LayOutWeights(const ModelConfig& config, const TensorStore& store) {
  return {.trunk = ListTrunk(config, store),
          .expert_bytes = store.expert_bytes(),
          .stored_expert_bytes = store.MeanStoredExpertBytes(),
          .expert_slot_bytes = ExpertCache::SlotBytes(config, store),
          .expert_scratch_bytes = store.MostCodedScaleBytes()};
}

WeightLayout LayOutWeights(const ModelConfig& config) {
  WeightLayout layout;
  IdealFiles files(config);
  layout.trunk = ListTrunkWith(config, [&](const TensorAddress& tensor, const TensorSpec& spec) {
    return files.Place(tensor, spec);
  });
  layout.expert_bytes = ExpertBytes(config);
  layout.stored_expert_bytes = layout.expert_bytes;
  layout.expert_slot_bytes = files.ExpertSlotBytes(layout.expert_bytes);
  return layout;
}

}  // namespace thimble
