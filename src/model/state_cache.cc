#include "model/state_cache.h"

namespace thimble {
namespace {

// Floats of one layer's parts.
size_t KdaStateSize(const KdaConfig& kda) { return kda.ProjectionSize() * kda.head_dim; }
size_t KdaHistorySize(const KdaConfig& kda) {
  return 3 * (kda.conv_width - 1) * kda.ProjectionSize();
}

template <typename T>
std::span<std::byte> BytesOf(T* values, size_t count) {
  return std::as_writable_bytes(std::span(values, count));
}

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
      view.kda_state = carver.Take<float>(KdaStateSize(kda));
      view.kda_history = carver.Take<float>(KdaHistorySize(kda));
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
    : config_(config),
      capacity_(capacity),
      latent_shape_(ShapeOf(config, latents)),
      buffer_(budget, "session state", Bytes(config, capacity, latents)) {
  Carver carver(buffer_);
  layers_ = Lay(config, capacity * latent_shape_.RowBytes(), carver);
}

std::vector<std::span<std::byte>> StateCache::Pieces(size_t num_tokens) {
  THIMBLE_CHECK(num_tokens <= capacity_);
  std::vector<std::span<std::byte>> pieces;
  for (const LayerViews& view : layers_) {
    if (view.latents != nullptr) {
      pieces.push_back(BytesOf(view.latents, num_tokens * latent_shape_.RowBytes()));
    } else {
      pieces.push_back(BytesOf(view.kda_state, KdaStateSize(config_.kda)));
      pieces.push_back(BytesOf(view.kda_history, KdaHistorySize(config_.kda)));
    }
  }
  return pieces;
}

uint64_t StateCache::PieceBytes(const ModelConfig& config, size_t num_tokens,
                                LatentFormat latents) {
  const uint64_t kda_bytes =
      (KdaStateSize(config.kda) + KdaHistorySize(config.kda)) * sizeof(float);
  const uint64_t mla_bytes = num_tokens * ShapeOf(config, latents).RowBytes();
  uint64_t bytes = 0;
  for (const LayerSpec& spec : config.layers) {
    bytes += spec.mixer == MixerKind::kKda ? kda_bytes : mla_bytes;
  }
  return bytes;
}

}  // namespace thimble
