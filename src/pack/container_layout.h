#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "format/container.h"
#include "format/model_config.h"

namespace thimble {

/// What a container will look like before any of it is written: the manifest, and the extents with
/// their places; checksums are missing, and what is coded has the most bytes that it can take.
struct ContainerLayout {
  ContainerManifest manifest;
  std::vector<ContainerExtent> extents;
  std::vector<ExtentUse> uses;

  /// The most that all data files take.
  uint64_t TotalBytes() const;
};

/// What of a layer is stored, in models that repeat some weights.
struct LayerSharing {
  size_t same_as = 0;                  // the layer that it repeats; itself where it is stored
  size_t distinct_experts = SIZE_MAX;  // of a stored layer so many are stored, the others repeat
};

/// What the layout may choose.
struct LayoutOptions {
  std::string source;                        // fingerprint, for the manifest
  std::vector<std::filesystem::path> extra;  // absolute directories for experts beside the first
  std::vector<LayerSharing> sharing;         // [layer]; empty: all layers and experts are stored
  std::vector<LossyPart> lossy;              // for the manifest
  bool q8_trunk = false;  // quantises BF16 matrices of the trunk where they may be
  bool code = true;       // stores tensors and scales coded where they may be
  /// How a trunk tensor is stored: dtype, and its columns where padded. `layer` is kNoLayer for
  /// what lies outside the layers.
  std::function<ContainerTensor(size_t layer, const TensorSpec& spec)> stored;
  static constexpr size_t kNoLayer = SIZE_MAX;
};

/// Lays out a container: core.bin with the embedding, the layers in order, the rest and the head;
/// then a file of experts for each stored MoE layer, the directories taking turns. A pure function.
ContainerLayout LayOutContainer(const ModelConfig& config, const LayoutOptions& options);

}  // namespace thimble
