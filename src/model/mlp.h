#pragma once

#include <cstddef>

#include "format/model_config.h"
#include "memory/buffer.h"
#include "model/executor.h"

namespace thimble {

/// y = activation(gate, up) for one row of `n` values: SiTU-GLU or SiLU-GLU (docs/MODEL.md). y may
/// be an input.
void Activate(const Kernels& kernels, const ActivationConfig& activation, const float* gate,
              const float* up, size_t n, float* y);

/// The roles of a gated MLP of the trunk.
struct MlpRoles {
  TensorRole gate;
  TensorRole up;
  TensorRole down;
};
inline constexpr MlpRoles kDenseMlp = {TensorRole::kDenseGate, TensorRole::kDenseUp,
                                       TensorRole::kDenseDown};
inline constexpr MlpRoles kSharedMlp = {TensorRole::kSharedGate, TensorRole::kSharedUp,
                                        TensorRole::kSharedDown};

/// A gated MLP that streams from the trunk: y = down activation(gate x, up x). Serves the dense
/// layers and the shared experts.
class Mlp {
 public:
  Mlp(const ModelConfig& config, size_t max_tokens, Carver& carver);

  /// x is packed; `inner` is the width between the matrices.
  void Forward(const Executor& executor, size_t layer, const MlpRoles& roles, size_t inner,
               const Rows& x, size_t num_tokens, const Rows& y);

 private:
  const ModelConfig& config_;
  Rows gate_;
  Rows up_;
  Rows packed_;
};

}  // namespace thimble
