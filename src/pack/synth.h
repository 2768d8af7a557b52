#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "format/published_models.h"
#include "pack/pack.h"

namespace thimble {

/// A model of random weights, in the exact shapes of a published one.
struct SynthOptions {
  std::string architecture;  // one of PublishedModelNames()
  ShapeOverrides shape;
  /// Of each kind of layer (KDA or MLA, dense or MoE) so many are stored; the others repeat them.
  std::optional<size_t> distinct_layers;
  /// Of each stored MoE layer so many experts are stored; the others repeat them.
  std::optional<size_t> distinct_experts;
  uint64_t seed = 0;
};

/// Writes such a model as a container, for measuring and testing without a download: matrices are
/// normal with a deviation of 1 / sqrt(inputs), norms near one, decay rates as models are
/// initialised, experts MXFP4. Same options, same bytes. What WriteContainer says holds;
/// Error(kUsage) for a shape that is unknown or makes no model.
PackResult SynthesizeModel(const SynthOptions& synth, const std::filesystem::path& dir,
                           const WriteOptions& options, PackObserver* observer);

}  // namespace thimble
