#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/model_config.h"
#include "format/tensor_store.h"
#include "io/file.h"
#include "pack/container_writer.h"

namespace thimble {

/// The weights of a checkpoint as published. Holds its files open; borrows config and store.
class SnapshotSource : public ExtentSource {
 public:
  SnapshotSource(const ModelConfig& config, const TensorStore& store);
  /// Error(kRuntime) where a shard cannot be read, Error(kBadModel) where a scale of an expert is
  /// no number.
  void Read(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) override;

 private:
  void ReadExpert(const ExtentUse& use, uint64_t offset, std::span<std::byte> out);
  const TensorExtent& TrunkExtent(const ExtentUse& use) const;

  const ModelConfig& config_;
  const TensorStore& store_;
  std::vector<File> files_;
};

/// The E8M0 byte that stands for no number; quantisation never produces it.
inline constexpr std::byte kScaleNan{0xff};

}  // namespace thimble
