#include "model/weights.h"

namespace thimble {

size_t RowGranule(const ModelConfig& config, TensorRole role) {
  return role == TensorRole::kKvB ? config.mla.nope_dim + config.mla.value_dim : 1;
}

}  // namespace thimble
