#include "model/layer_params.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace thimble {

LayerParams LayerParams::Lay(const ModelConfig& config, Carver& carver) {
  const size_t hidden = config.hidden_size;
  const size_t projection = config.kda.ProjectionSize();
  LayerParams params;
  params.input_norm = carver.Take<float>(hidden);
  params.post_norm = carver.Take<float>(hidden);
  params.attn_mix = carver.Take<float>(hidden);
  params.mlp_mix = carver.Take<float>(hidden);
  for (float*& conv : params.conv) conv = carver.Take<float>(config.kda.conv_width * projection);
  params.dt_bias = carver.Take<float>(projection);
  params.alpha = carver.Take<float>(config.kda.num_heads);
  params.out_norm = carver.Take<float>(config.kda.head_dim);
  params.query_norm = carver.Take<float>(config.mla.q_lora_rank);
  params.latent_kv_norm = carver.Take<float>(config.mla.kv_lora_rank);
  params.router_bias = carver.Take<float>(config.moe.num_experts);
  params.expert_norm = carver.Take<float>(config.moe.latent_size);
  params.scratch = carver.Take<float>(std::max(hidden, config.kda.conv_width * projection));
  return params;
}

void LoadVector(const TensorAddress& tensor, size_t count, const Executor& executor, float* out) {
  const Lease<WeightMatrix> rows = executor.source().Acquire(tensor, 0);
  THIMBLE_CHECK(rows->rows * rows->cols == count);
  executor.kernels().decode(*rows, out);
}

namespace {

// Loads the small tensors of one layer, in the order of LayerTensors.
class Loader {
 public:
  Loader(const ModelConfig& config, size_t layer, const Executor& executor, LayerParams& params)
      : config_(config), layer_(layer), executor_(executor), params_(params) {}

  void Load(const TensorSpec& spec) {
    const size_t count = spec.rows * spec.cols;
    switch (spec.role) {
      case TensorRole::kInputNorm:
        return Plain(spec.role, count, params_.input_norm);
      case TensorRole::kPostNorm:
        return Plain(spec.role, count, params_.post_norm);
      case TensorRole::kAttnResNorm:
        return Plain(spec.role, count, params_.attn_mix);
      case TensorRole::kAttnResProj:
        return Product(spec.role, count, params_.attn_mix);
      case TensorRole::kMlpResNorm:
        return Plain(spec.role, count, params_.mlp_mix);
      case TensorRole::kMlpResProj:
        return Product(spec.role, count, params_.mlp_mix);
      case TensorRole::kQueryConv:
        return Taps(spec.role, params_.conv[0]);
      case TensorRole::kKeyConv:
        return Taps(spec.role, params_.conv[1]);
      case TensorRole::kValueConv:
        return Taps(spec.role, params_.conv[2]);
      case TensorRole::kALog:
        return Alpha(spec.role);
      case TensorRole::kDtBias:
        return Plain(spec.role, count, params_.dt_bias);
      case TensorRole::kOutNorm:
        return Plain(spec.role, count, params_.out_norm);
      case TensorRole::kQueryANorm:
        return Plain(spec.role, count, params_.query_norm);
      case TensorRole::kKvANorm:
        return Plain(spec.role, count, params_.latent_kv_norm);
      case TensorRole::kRouterBias:
        return Plain(spec.role, count, params_.router_bias);
      case TensorRole::kLatentNorm:
        return Plain(spec.role, count, params_.expert_norm);
      default:
        THIMBLE_CHECK(IsMatrix(spec.role));
    }
  }

 private:
  void Plain(TensorRole role, size_t count, float* out) {
    LoadVector({layer_, role}, count, executor_, out);
  }

  // The mix needs only the product of its two weights (docs/MODEL.md, attention residuals).
  void Product(TensorRole role, size_t count, float* out) {
    Plain(role, count, params_.scratch);
    executor_.kernels().multiply(params_.scratch, count, out);
  }

  // Checkpoints hold the taps of each channel together; the kernel runs over channels.
  void Taps(TensorRole role, float* out) {
    const size_t width = config_.kda.conv_width;
    const size_t channels = config_.kda.ProjectionSize();
    Plain(role, width * channels, params_.scratch);
    for (size_t tap = 0; tap < width; ++tap) {
      for (size_t channel = 0; channel < channels; ++channel) {
        out[tap * channels + channel] = params_.scratch[channel * width + tap];
      }
    }
  }

  // The tensor may be padded beyond the heads. In double, so that no libm rounds it differently.
  void Alpha(TensorRole role) {
    const size_t heads = config_.kda.num_heads;
    const Lease<WeightMatrix> rows = executor_.source().Acquire({layer_, role}, 0);
    THIMBLE_CHECK(rows->rows == 1 && rows->cols >= heads);
    WeightMatrix used = *rows;
    used.cols = heads;
    executor_.kernels().decode(used, params_.alpha);
    for (size_t head = 0; head < heads; ++head) {
      params_.alpha[head] = static_cast<float>(std::exp(static_cast<double>(params_.alpha[head])));
    }
  }

  const ModelConfig& config_;
  size_t layer_;
  const Executor& executor_;
  LayerParams& params_;
};

}  // namespace

void LayerParams::Load(const ModelConfig& config, size_t layer, std::span<const TensorSpec> tensors,
                       const Executor& executor) {
  Loader loader(config, layer, executor, *this);
  for (const TensorSpec& spec : tensors) loader.Load(spec);
}

}  // namespace thimble
