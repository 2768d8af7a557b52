#include "model/state_cache.h"

namespace thimble {
namespace {

LatentShape ShapeOf(const ModelConfig& config, LatentFormat format) {
  return {format, config.mla.kv_lora_rank, config.mla.extra_dim};
}

}  // namespace

std::vector<StateCache::LayerViews> StateCache::Lay(const ModelConfig& config,
                                                    uint64_t latent_bytes, Carver& carver) {
  const KdaConfig& kda = config.kda;
  std::vector<LayerViews> views(config.num_layers());
  for (size_t layer = 0; layer < config.num_layers(); ++layer) {
    LayerViews& view = views[layer];
    if (config.layers[layer].mixer == MixerKind::kKda) {
      view.kda_state = carver.Take<float>(kda.ProjectionSize() * kda.head_dim);
      view.kda_history = carver.Take<float>(3 * (kda.conv_width - 1) * kda.ProjectionSize());
    } else {
      view.latents = carver.Take<uint8_t>(latent_bytes);
    }
  }
  return views;
}

uint64_t StateCache::Bytes(const ModelConfig& config, size_t capacity, LatentFormat latents) {
  Carver counter;
  Lay(config, capacity * ShapeOf(config, latents).RowBytes(), counter);
  return counter.used_bytes();
}

StateCache::StateCache(const ModelConfig& config, size_t capacity, MemoryBudget& budget,
                       LatentFormat latents)
    : capacity_(capacity),
      latent_shape_(ShapeOf(config, latents)),
      buffer_(budget, "session state", Bytes(config, capacity, latents)) {
  Carver carver(buffer_);
  layers_ = Lay(config, capacity * latent_shape_.RowBytes(), carver);
}

}  // namespace thimble
