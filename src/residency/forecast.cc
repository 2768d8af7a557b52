#include "residency/forecast.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "format/model_summary.h"
#include "model/state_cache.h"

namespace thimble {
namespace {

double NumMoeLayers(const ModelConfig& config) {
  return static_cast<double>(std::count_if(
      config.layers.begin(), config.layers.end(),
      [](const LayerSpec& spec) { return spec.feed_forward == FeedForwardKind::kMoe; }));
}

double StreamedShare(const WeightSizes& sizes, const MemoryPlan& plan) {
  if (plan.ring_slots == 0) return 0;
  return 1 - static_cast<double>(plan.pinned_bytes) / static_cast<double>(sizes.trunk_bytes);
}

// The longer of passing `bytes` of weights through the cores once and of `flops` of arithmetic.
double ProductSeconds(const WeightRate& rate, double bytes, double flops) {
  return std::max(bytes / rate.bytes_per_s, flops / rate.flops);
}

// The products of a part of the trunk with `tokens` tokens.
double PartsSeconds(const WeightSizes::Parts& parts, const MachineRates& rates, double tokens) {
  double seconds = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].bytes == 0) continue;
    seconds += ProductSeconds(rates.products[i], static_cast<double>(parts[i].bytes),
                              2 * static_cast<double>(parts[i].weights) * tokens);
  }
  return seconds;
}

}  // namespace

std::vector<WeightFormat> FormatsOf(const ModelConfig& config, const WeightSizes& sizes) {
  std::vector<WeightFormat> formats;
  for (size_t i = 0; i < kNumWeightFormats; ++i) {
    const auto format = static_cast<WeightFormat>(i);
    const bool in_experts = sizes.expert_bytes != 0 && config.moe.format == format;
    const bool in_trunk = sizes.layer_parts[i].bytes != 0 || sizes.head_parts[i].bytes != 0;
    if (in_experts || in_trunk) formats.push_back(format);
  }
  return formats;
}

double ExpectedHitRate(const ModelConfig& config, const MemoryPlan& plan, Routing routing) {
  const double layers = NumMoeLayers(config);
  if (layers == 0) return 0;
  const auto experts = static_cast<double>(config.moe.num_experts);
  const double cached = std::min(static_cast<double>(plan.cached_experts) / layers, experts);
  if (routing == Routing::kUniform) return cached / experts;
  // The cache first holds the experts of the last token; what is left of it is as good as chance.
  const auto chosen = static_cast<double>(config.moe.top_k);
  const double repeated = kRepeatedExperts * std::min(1.0, cached / chosen);
  if (cached <= chosen) return std::max(repeated, cached / experts);
  return repeated + (1 - repeated) * (cached - chosen) / (experts - chosen);
}

double DistinctExperts(const MoeConfig& moe, size_t num_tokens) {
  if (moe.num_experts == 0) return 0;
  const auto experts = static_cast<double>(moe.num_experts);
  const double missed = 1 - static_cast<double>(moe.top_k) / experts;
  return experts * (1 - std::pow(missed, static_cast<double>(num_tokens)));
}

SweepReads ExpectedReads(const ModelConfig& config, const WeightSizes& sizes,
                         const MemoryPlan& plan, const SweepKind& sweep) {
  const double streamed = StreamedShare(sizes, plan);
  SweepReads reads;
  reads.layers = streamed * static_cast<double>(sizes.layer_bytes);
  if (sweep.with_head) reads.head = streamed * static_cast<double>(sizes.head_bytes);
  reads.experts = NumMoeLayers(config) * DistinctExperts(config.moe, sweep.num_tokens) *
                  (1 - ExpectedHitRate(config, plan, sweep.routing)) *
                  static_cast<double>(sizes.stored_expert_bytes);
  const auto row = static_cast<double>(config.hidden_size *
                                       SizeOf(PublishedType(config, TensorRole::kEmbedding)));
  reads.embedding = row * static_cast<double>(sweep.num_tokens);
  return reads;
}

double ComputeSeconds(const ModelConfig& config, const WeightSizes& sizes,
                      const MachineRates& rates, const SweepKind& sweep) {
  const auto tokens = static_cast<double>(sweep.num_tokens);
  double seconds = PartsSeconds(sizes.layer_parts, rates, tokens);
  if (sweep.with_head) seconds += PartsSeconds(sizes.head_parts, rates, 1);
  const double moe_layers = NumMoeLayers(config);
  if (moe_layers == 0) return seconds;
  const WeightRate& rate = rates.Of(config.moe.format);
  const double passed = moe_layers * DistinctExperts(config.moe, sweep.num_tokens) *
                        static_cast<double>(sizes.expert_bytes);
  const double weights =
      3.0 * static_cast<double>(config.ExpertWidth()) * static_cast<double>(config.moe.inner_size);
  const double flops = 2 * weights * moe_layers * static_cast<double>(config.moe.top_k) * tokens;
  return seconds + ProductSeconds(rate, passed, flops);
}

double SweepSeconds(const ModelConfig& config, const WeightSizes& sizes, const MemoryPlan& plan,
                    const MachineRates& rates, const SweepKind& sweep) {
  return std::max(ExpectedReads(config, sizes, plan, sweep).Total() / rates.drive_bytes_per_s,
                  ComputeSeconds(config, sizes, rates, sweep));
}

uint64_t ContextTokenBytes(const ModelConfig& config, LatentFormat latents) {
  // Parts are rounded to cache lines, so a few tokens at once.
  constexpr size_t kTokens = 64;
  return (StateCache::Bytes(config, kTokens, latents) - StateCache::Bytes(config, 0)) / kTokens;
}

}  // namespace thimble
