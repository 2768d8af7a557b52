#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/model_config.h"
#include "format/tensor_role.h"

namespace thimble {

/// The names of a checkpoint's tensors, by grammar:
///
///   name   = ["language_model."] (global | "model.layers." number "." layer)
///   layer  = trunk name of that layer | "block_sparse_moe.experts." number "." expert tensor
///   number = decimal digits without leading zeros, in range
///
/// with the prefix for Kimi K3 only. Every tensor that the configuration calls for has a slot in
/// [0, size()), so that "each exactly once" is a table over slots; no name is ever stored.
class TensorNames {
 public:
  enum class Kind : uint8_t {
    kUnknown,
    kIgnored,  // of a part that Thimble does not run: the vision tower and its projector
    kGlobal,
    kLayer,
    kExpert,
  };
  struct Place {
    Kind kind = Kind::kUnknown;
    size_t slot = 0;
    size_t layer = 0;
    size_t expert = 0;
    const TensorSpec* spec = nullptr;         // kGlobal, kLayer
    const ExpertTensorSpec* piece = nullptr;  // kExpert
  };

  /// Keeps no reference to `config`.
  explicit TensorNames(const ModelConfig& config);
  TensorNames(const TensorNames&) = delete;  // places point into it
  TensorNames& operator=(const TensorNames&) = delete;

  /// Number of tensors that the configuration calls for.
  size_t size() const { return num_slots_; }
  Place Find(std::string_view name) const;
  /// The full name of a slot: the inverse of Find.
  std::string NameOf(size_t slot) const;

 private:
  struct LayerNames {
    const std::vector<TensorSpec>* specs;
    size_t trunk_slot;   // of the first of `specs`
    size_t expert_slot;  // of the first expert's first tensor
    bool is_moe;
  };
  static constexpr size_t kLayerKinds = 4;

  Place FindInLayer(size_t layer, std::string_view name) const;
  Place FindExpert(size_t layer, std::string_view name) const;

  bool is_k3_ = false;
  size_t num_experts_ = 0;
  size_t num_slots_ = 0;
  std::vector<TensorSpec> globals_;
  std::vector<TensorSpec> layer_specs_[kLayerKinds];
  std::vector<ExpertTensorSpec> pieces_;
  std::vector<LayerNames> layers_;
};

}  // namespace thimble
