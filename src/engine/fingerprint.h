#pragma once

#include <cstdint>

#include "format/model_config.h"
#include "format/tensor_store.h"

namespace thimble {

/// A checksum that distinguishes the weights of models of the same shape without reading all of
/// them. It covers the sizes of the configuration, every layer's norms, the routers' biases and the
/// final norm. A downloaded model and its packed copy have the same one unless packing quantised a
/// part. Error(kRuntime) if a read fails.
uint64_t FingerprintOf(const ModelConfig& config, const TensorStore& store);

}  // namespace thimble
