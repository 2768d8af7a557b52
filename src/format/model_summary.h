#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "format/model_config.h"
#include "format/tensor_role.h"
#include "format/tensor_store.h"

namespace thimble {

/// The parts that a model's size is told by.
enum class ModelPart : uint8_t {
  kEmbedding,
  kHead,
  kKda,      // matrices of the KDA layers
  kMla,      // matrices of the MLA layers
  kDense,    // feed-forward matrices of the dense layers
  kRouter,   // router matrices
  kLatent,   // projections to and from the experts' latent width
  kShared,   // shared experts
  kExperts,  // routed experts
  kSmall,    // everything that is no matrix: norms, convolutions, biases, decay rates
  kCount,
};
inline constexpr size_t kNumModelParts = static_cast<size_t>(ModelPart::kCount);

/// "attention, KDA" and the like, for a table.
std::string_view NameOf(ModelPart part);

struct PartSummary {
  uint64_t parameters = 0;
  uint64_t bytes = 0;  // as stored, MXFP4 scales included
};

struct ModelSummary {
  size_t kda_layers = 0;
  size_t mla_layers = 0;
  size_t dense_layers = 0;
  size_t moe_layers = 0;
  std::array<PartSummary, kNumModelParts> parts = {};
  /// All parameters of the text model, counted as model cards do: a weight once, however it is
  /// stored; scales and padding are not weights.
  uint64_t total_parameters = 0;
  /// Parameters that one token is multiplied by: the whole trunk with the head, the chosen experts
  /// of each MoE layer, and one row of the embedding.
  uint64_t active_parameters = 0;
  uint64_t total_bytes = 0;

  const PartSummary& Part(ModelPart part) const { return parts[static_cast<size_t>(part)]; }
};

/// The dtype of a tensor of the trunk in the published checkpoint: F32 for decay rates, biases and,
/// in Kimi K3, convolutions and KDA's output norm; BF16 for the rest.
DType PublishedType(const ModelConfig& config, TensorRole role);

/// Sizes by the configuration alone, with the dtypes of the published checkpoint: PublishedType for
/// the trunk; MXFP4 or BF16 for experts, as the configuration says. Padding of decay rates is not
/// known and not counted.
ModelSummary Summarize(const ModelConfig& config);

/// The same with the dtypes and sizes that the store found.
ModelSummary Summarize(const ModelConfig& config, const TensorStore& store);

}  // namespace thimble
