#include "format/model_summary.h"

#include <concepts>

#include "format/tensor_role.h"

namespace thimble {
namespace {

// Bytes of a tensor of the trunk; `layer` is nothing for a global one.
template <typename F>
concept StoredSize = requires(F size, const TensorSpec& spec, const size_t* layer) {
  { size(spec, layer) } -> std::same_as<uint64_t>;
};

ModelPart PartOf(TensorRole role, MixerKind mixer) {
  switch (role) {
    case TensorRole::kEmbedding:
      return ModelPart::kEmbedding;
    case TensorRole::kHead:
      return ModelPart::kHead;
    case TensorRole::kDenseGate:
    case TensorRole::kDenseUp:
    case TensorRole::kDenseDown:
      return ModelPart::kDense;
    case TensorRole::kRouter:
      return ModelPart::kRouter;
    case TensorRole::kLatentDown:
    case TensorRole::kLatentUp:
      return ModelPart::kLatent;
    case TensorRole::kSharedGate:
    case TensorRole::kSharedUp:
    case TensorRole::kSharedDown:
      return ModelPart::kShared;
    default:
      if (!IsMatrix(role)) return ModelPart::kSmall;
      return mixer == MixerKind::kKda ? ModelPart::kKda : ModelPart::kMla;
  }
}

void Add(ModelSummary* summary, ModelPart part, PartSummary size) {
  PartSummary& sum = summary->parts[static_cast<size_t>(part)];
  sum.parameters += size.parameters;
  sum.bytes += size.bytes;
  summary->total_parameters += size.parameters;
  summary->total_bytes += size.bytes;
}

// The experts of a layer.
void AddExperts(const ModelConfig& config, uint64_t bytes, ModelSummary* summary) {
  const MoeConfig& moe = config.moe;
  const uint64_t parameters = uint64_t{3} * config.ExpertWidth() * moe.inner_size;
  Add(summary, ModelPart::kExperts, {.parameters = moe.num_experts * parameters, .bytes = bytes});
  summary->active_parameters += moe.top_k * parameters;
}

void CountLayer(const LayerSpec& spec, ModelSummary* summary) {
  ++(spec.mixer == MixerKind::kKda ? summary->kda_layers : summary->mla_layers);
  ++(spec.feed_forward == FeedForwardKind::kMoe ? summary->moe_layers : summary->dense_layers);
}

// `expert_bytes` says what the experts of a layer take.
template <StoredSize F, typename G>
ModelSummary SummarizeWith(const ModelConfig& config, const F& stored_bytes,
                           const G& expert_bytes) {
  ModelSummary summary;
  const auto add = [&](const TensorSpec& spec, MixerKind mixer, const size_t* layer) {
    const uint64_t parameters = uint64_t{spec.rows} * spec.cols;
    Add(&summary, PartOf(spec.role, mixer),
        {.parameters = parameters, .bytes = stored_bytes(spec, layer)});
    summary.active_parameters += spec.role == TensorRole::kEmbedding ? spec.cols : parameters;
  };
  for (const TensorSpec& spec : GlobalTensors(config)) add(spec, MixerKind::kKda, nullptr);
  for (size_t layer = 0; layer < config.num_layers(); ++layer) {
    const LayerSpec& layer_spec = config.layers[layer];
    CountLayer(layer_spec, &summary);
    for (const TensorSpec& spec : LayerTensors(config, layer_spec)) {
      add(spec, layer_spec.mixer, &layer);
    }
    if (layer_spec.feed_forward == FeedForwardKind::kMoe) {
      AddExperts(config, expert_bytes(layer), &summary);
    }
  }
  return summary;
}

}  // namespace

std::string_view NameOf(ModelPart part) {
  switch (part) {
    case ModelPart::kEmbedding:
      return "embedding";
    case ModelPart::kHead:
      return "output head";
    case ModelPart::kKda:
      return "attention, KDA";
    case ModelPart::kMla:
      return "attention, MLA";
    case ModelPart::kDense:
      return "dense feed-forward";
    case ModelPart::kRouter:
      return "routers";
    case ModelPart::kLatent:
      return "latent projections";
    case ModelPart::kShared:
      return "shared experts";
    case ModelPart::kExperts:
      return "routed experts";
    case ModelPart::kSmall:
      return "norms and small tensors";
    case ModelPart::kCount:
      break;
  }
  return "?";
}

DType PublishedType(const ModelConfig& config, TensorRole role) {
  const bool is_k3 = config.architecture == Architecture::kKimiK3;
  switch (role) {
    case TensorRole::kALog:
    case TensorRole::kDtBias:
    case TensorRole::kRouterBias:
      return DType::kF32;
    case TensorRole::kQueryConv:
    case TensorRole::kKeyConv:
    case TensorRole::kValueConv:
    case TensorRole::kOutNorm:
      return is_k3 ? DType::kF32 : DType::kBF16;
    default:
      return DType::kBF16;
  }
}

ModelSummary Summarize(const ModelConfig& config) {
  const auto stored_bytes = [&](const TensorSpec& spec, const size_t*) {
    return uint64_t{spec.rows} * spec.cols * SizeOf(PublishedType(config, spec.role));
  };
  const uint64_t expert_bytes = config.moe.num_experts * ExpertBytes(config);
  return SummarizeWith(config, stored_bytes, [&](size_t) { return expert_bytes; });
}

ModelSummary Summarize(const ModelConfig& config, const TensorStore& store) {
  const auto stored_bytes = [&](const TensorSpec& spec, const size_t* layer) {
    return layer == nullptr ? store.Global(spec.role).Bytes()
                            : store.Layer(*layer, spec.role).Bytes();
  };
  const auto expert_bytes = [&](size_t layer) {
    uint64_t bytes = 0;
    for (size_t expert = 0; expert < config.moe.num_experts; ++expert) {
      bytes += store.Expert(layer, expert).StoredBytes();
    }
    return bytes;
  };
  return SummarizeWith(config, stored_bytes, expert_bytes);
}

}  // namespace thimble
