#include "model/moe.h"

#include <algorithm>

#include "base/error.h"

namespace thimble {

MoeLayer::MoeLayer(const ModelConfig& config, size_t max_tokens, Carver& carver) : config_(config) {
  const MoeConfig& moe = config.moe;
  const size_t width = config.ExpertWidth();
  const size_t rows = max_tokens * moe.top_k;
  const auto take = [&](size_t count, size_t stride) {
    return Rows{carver.Take<float>(count * stride), stride};
  };
  scores_ = take(max_tokens, moe.num_experts);
  biased_ = take(max_tokens, moe.num_experts);
  groups_ = take(max_tokens, moe.num_groups);
  order_ = carver.Take<uint32_t>(max_tokens * moe.num_experts);
  routes_ = carver.Take<thimble::Route>(rows);
  assignments_ = carver.Take<Assignment>(rows);
  distinct_ = carver.Take<uint32_t>(std::min(rows, moe.num_experts));
  if (moe.latent_size != 0) {
    latent_ = take(max_tokens, width);
    latent_packed_ = take(max_tokens, PackedCols(width));
    sum_packed_ = take(max_tokens, PackedCols(width));
    routed_ = take(max_tokens, config.hidden_size);
  }
  sum_ = take(max_tokens, width);
  gathered_ = take(max_tokens, PackedCols(width));
  gate_ = take(max_tokens, moe.inner_size);
  up_ = take(max_tokens, moe.inner_size);
  inner_packed_ = take(max_tokens, PackedCols(moe.inner_size));
  expert_out_ = take(max_tokens, width);
  outputs_ = take(rows, width);
}

void MoeLayer::Forward(const Executor& executor, ExpertSource& experts, Mlp& shared, size_t layer,
                       const LayerParams& params, size_t num_tokens, const Rows& packed,
                       const Rows& y) {
  const MoeConfig& moe = config_.moe;
  Route(executor, layer, params, num_tokens, packed);
  const size_t num_experts = ListExperts(num_tokens);
  experts.Request(layer, {distinct_, num_experts});

  Rows z = packed;
  if (moe.latent_size != 0) {
    executor.Linear({layer, TensorRole::kLatentDown}, moe.latent_size, packed, num_tokens, latent_);
    executor.Pack(latent_, moe.latent_size, num_tokens, latent_packed_);
    z = latent_packed_;
  }
  if (moe.shared_inner_size != 0) {
    shared.Forward(executor, layer, kSharedMlp, moe.shared_inner_size, packed, num_tokens, y);
  } else {
    for (size_t t = 0; t < num_tokens; ++t) std::fill_n(y[t], config_.hidden_size, 0.0F);
  }
  for (size_t i = 0; i < num_experts; ++i) {
    RunExpert(executor, *experts.Next(), z);
    executor.ThrowIfStopped();
  }
  Combine(executor, num_tokens, sum_);

  Rows routed = sum_;
  if (moe.latent_size != 0) {
    executor.ForTokens(num_tokens, moe.latent_size, [&](size_t t) {
      if (!moe.latent_norm) return;
      executor.kernels().rms_norm(sum_[t], params.expert_norm, config_.rms_eps, moe.latent_size,
                                  sum_[t]);
    });
    executor.Pack(sum_, moe.latent_size, num_tokens, sum_packed_);
    executor.Linear({layer, TensorRole::kLatentUp}, config_.hidden_size, sum_packed_, num_tokens,
                    routed_);
    routed = routed_;
  }
  executor.ForTokens(num_tokens, config_.hidden_size, [&](size_t t) {
    executor.kernels().add(routed[t], config_.hidden_size, y[t]);
  });
}

void MoeLayer::Route(const Executor& executor, size_t layer, const LayerParams& params,
                     size_t num_tokens, const Rows& packed) {
  const MoeConfig& moe = config_.moe;
  executor.Linear({layer, TensorRole::kRouter}, moe.num_experts, packed, num_tokens, scores_);
  executor.ForTokens(num_tokens, 16 * moe.num_experts, [&](size_t t) {
    RouteToken(executor.kernels(), moe, params.router_bias, scores_[t],
               {biased_[t], groups_[t], order_ + t * moe.num_experts},
               {routes_ + t * moe.top_k, moe.top_k});
  });
}

// Sorts the assignments by expert and lists the distinct experts; returns how many.
size_t MoeLayer::ListExperts(size_t num_tokens) {
  num_assignments_ = num_tokens * config_.moe.top_k;
  for (size_t row = 0; row < num_assignments_; ++row) {
    assignments_[row] = {routes_[row].expert, static_cast<uint32_t>(row)};
  }
  std::sort(assignments_, assignments_ + num_assignments_);
  size_t count = 0;
  for (size_t i = 0; i < num_assignments_; ++i) {
    const uint32_t expert = assignments_[i].expert;
    if (count == 0 || distinct_[count - 1] != expert) distinct_[count++] = expert;
  }
  return count;
}

void MoeLayer::RunExpert(const Executor& executor, const ExpertView& expert, const Rows& z) {
  const MoeConfig& moe = config_.moe;
  const Assignment* first =
      std::lower_bound(assignments_, assignments_ + num_assignments_, Assignment{expert.expert, 0});
  const Assignment* last = first;
  while (last != assignments_ + num_assignments_ && last->expert == expert.expert) ++last;
  const auto count = static_cast<size_t>(last - first);
  THIMBLE_CHECK(count > 0);

  executor.ForTokens(count, gathered_.stride, [&](size_t i) {
    std::copy_n(z[first[i].row / moe.top_k], gathered_.stride, gathered_[i]);
  });
  executor.MatMul(expert.gate, gathered_, count, gate_);
  executor.MatMul(expert.up, gathered_, count, up_);
  executor.ForTokens(count, 8 * moe.inner_size, [&](size_t i) {
    Activate(executor.kernels(), config_.activation, gate_[i], up_[i], moe.inner_size, gate_[i]);
    executor.kernels().pack_activations(gate_[i], moe.inner_size, inner_packed_[i]);
  });
  executor.MatMul(expert.down, inner_packed_, count, expert_out_);
  executor.ForTokens(count, expert_out_.stride, [&](size_t i) {
    std::copy_n(expert_out_[i], expert_out_.stride, outputs_[first[i].row]);
  });
}

void MoeLayer::Combine(const Executor& executor, size_t num_tokens, const Rows& y) const {
  const size_t top_k = config_.moe.top_k;
  const size_t width = config_.ExpertWidth();
  executor.ForTokens(num_tokens, top_k * width, [&](size_t t) {
    const thimble::Route* routes = routes_ + t * top_k;
    executor.kernels().scale(routes[0].weight, outputs_[t * top_k], width, y[t]);
    for (size_t i = 1; i < top_k; ++i) {
      executor.kernels().axpy(routes[i].weight, outputs_[t * top_k + i], width, y[t]);
    }
  });
}

}  // namespace thimble
