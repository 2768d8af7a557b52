#pragma once

#include <cstdint>

#include "format/model_config.h"
#include "format/tensor_store.h"

namespace thimble {

/// A checksum by which one model's weights are told from another's of the same shape, without
/// reading all of them: the sizes of the configuration, every layer's norms, the biases of the
/// routers, and the final norm. The same for a model as downloaded and packed, but not where
/// packing quantised a part of it. Error(kRuntime) where a read fails.
uint64_t FingerprintOf(const ModelConfig& config, const TensorStore& store);

}  // namespace thimble
