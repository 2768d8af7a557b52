#include "model/mlp.h"

#include <algorithm>

namespace thimble {

void Activate(const Kernels& kernels, const ActivationConfig& activation, const float* gate,
              const float* up, size_t n, float* y) {
  if (activation.situ_beta) {
    kernels.situ_glu(gate, up, *activation.situ_beta, activation.situ_linear_beta, n, y);
  } else {
    kernels.silu_glu(gate, up, n, y);
  }
}

Mlp::Mlp(const ModelConfig& config, size_t max_tokens, Carver& carver) : config_(config) {
  const size_t inner = std::max(config.dense_inner_size, config.moe.shared_inner_size);
  gate_ = {carver.Take<float>(max_tokens * inner), inner};
  up_ = {carver.Take<float>(max_tokens * inner), inner};
  packed_ = {carver.Take<float>(max_tokens * PackedCols(inner)), PackedCols(inner)};
}

void Mlp::Forward(const Executor& executor, size_t layer, const MlpRoles& roles, size_t inner,
                  const Rows& x, size_t num_tokens, const Rows& y) {
  executor.Linear({layer, roles.gate}, inner, x, num_tokens, gate_);
  executor.Linear({layer, roles.up}, inner, x, num_tokens, up_);
  executor.ForTokens(num_tokens, 8 * inner, [&](size_t token) {
    Activate(executor.kernels(), config_.activation, gate_[token], up_[token], inner, gate_[token]);
  });
  executor.Pack(gate_, inner, num_tokens, packed_);
  executor.Linear({layer, roles.down}, config_.hidden_size, packed_, num_tokens, y);
}

}  // namespace thimble
