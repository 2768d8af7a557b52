#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "format/model_config.h"

namespace thimble {

/// What a tensor of the trunk (everything but the routed experts) is for. One layer holds each role
/// at most once; MLA and KDA share the names that their checkpoints share.
enum class TensorRole : uint8_t {
  // outside the layers
  kEmbedding,
  kHead,
  kFinalNorm,
  kOutputResNorm,
  kOutputResProj,
  // every layer
  kInputNorm,
  kPostNorm,
  kAttnResNorm,
  kAttnResProj,
  kMlpResNorm,
  kMlpResProj,
  // mixers; kQuery is KDA's q_proj and the plain q_proj of MLA
  kQuery,
  kKey,
  kValue,
  kQueryConv,
  kKeyConv,
  kValueConv,
  kDecayA,
  kDecayB,
  kBeta,
  kALog,
  kDtBias,
  kGate,
  kGateA,
  kGateB,
  kOutNorm,
  kOut,
  kQueryA,
  kQueryANorm,
  kQueryB,
  kKvA,
  kKvANorm,
  kKvB,
  // feed-forward
  kDenseGate,
  kDenseUp,
  kDenseDown,
  kRouter,
  kRouterBias,
  kLatentDown,
  kLatentNorm,
  kLatentUp,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kCount,
};

/// A tensor of the trunk that a configuration calls for, as a matrix [rows, cols]; a vector has one
/// row. kALog is the exception that a file may exceed: it may be padded beyond its `cols` heads.
struct TensorSpec {
  TensorRole role;
  std::string_view name;  // after the prefix of the model or layer, e.g. "self_attn.q_proj.weight"
  size_t rows;
  size_t cols;
};

/// Tensors of layer `spec`, in the order in which the forward pass reads them: the small ones
/// (norms, convolutions, biases: everything but matrices) first, then the matrices.
std::vector<TensorSpec> LayerTensors(const ModelConfig& config, const LayerSpec& spec);

/// Tensors outside the layers: the embedding, the small ones, then the head.
std::vector<TensorSpec> GlobalTensors(const ModelConfig& config);

/// True for a matrix, which is large and may be streamed by rows (the embedding is one); false for
/// the small tensors: norms, residual projections, convolutions, biases, decay rates.
bool IsMatrix(TensorRole role);

/// The tensors of an expert, in this order: gate (w1), down (w2), up (w3); each its codes or
/// elements and, for MXFP4, its scales. That is also their order in the published shards.
inline constexpr size_t kExpertTensors = 6;
enum class ExpertTensor : uint8_t {
  kGate,
  kGateScales,
  kDown,
  kDownScales,
  kUp,
  kUpScales,
};

/// One stored tensor of a routed expert, [rows, cols] elements of `dtype`: of MXFP4 bytes, so that
/// cols is the inputs / 2 for codes and the inputs / kMxGroup for scales.
struct ExpertTensorSpec {
  ExpertTensor tensor;
  std::string_view name;  // after the prefix of the expert, e.g. "w1.weight_packed"
  DType dtype;
  size_t rows;
  size_t cols;

  uint64_t Bytes() const { return uint64_t{rows} * cols * SizeOf(dtype); }
};

/// Tensors of every routed expert, in the order of ExpertTensor: six for MXFP4, three for BF16.
std::vector<ExpertTensorSpec> ExpertTensors(const ModelConfig& config);

/// Bytes of all of them.
uint64_t ExpertBytes(const ModelConfig& config);

/// True for a tensor of E8M0 scales.
constexpr bool IsScales(ExpertTensor tensor) {
  return tensor == ExpertTensor::kGateScales || tensor == ExpertTensor::kDownScales ||
         tensor == ExpertTensor::kUpScales;
}

}  // namespace thimble
