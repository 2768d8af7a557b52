#include "model/state_cache.h"

namespace thimble {

std::vector<StateCache::LayerViews> StateCache::Lay(const ModelConfig& config, size_t capacity,
                                                    Carver& carver) {
  const KdaConfig& kda = config.kda;
  std::vector<LayerViews> views(config.num_layers());
  for (size_t layer = 0; layer < config.num_layers(); ++layer) {
    LayerViews& view = views[layer];
    if (config.layers[layer].mixer == MixerKind::kKda) {
      view.kda_state = carver.Take<float>(kda.ProjectionSize() * kda.head_dim);
      view.kda_history = carver.Take<float>(3 * (kda.conv_width - 1) * kda.ProjectionSize());
    } else {
      view.latents = carver.Take<float>(capacity * config.mla.CacheDim());
    }
  }
  return views;
}

uint64_t StateCache::Bytes(const ModelConfig& config, size_t capacity) {
  Carver counter;
  Lay(config, capacity, counter);
  return counter.used_bytes();
}

StateCache::StateCache(const ModelConfig& config, size_t capacity, MemoryBudget& budget)
    : capacity_(capacity), buffer_(budget, "session state", Bytes(config, capacity)) {
  Carver carver(buffer_);
  layers_ = Lay(config, capacity, carver);
}

}  // namespace thimble
