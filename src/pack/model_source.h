#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "format/checksum.h"
#include "format/container_check.h"
#include "format/model_config.h"
#include "format/tensor_store.h"
#include "io/file.h"
#include "pack/container_writer.h"

namespace thimble {

/// The weights of a model on disk, decoded where they are coded: of a checkpoint as published, or
/// of a container, whose extents are compared with their checksums as they are read. Holds its
/// files open, and of a container one group of coded rows, or the scales of one expert. Borrows its
/// arguments.
class ModelSource : public ExtentSource {
 public:
  /// `check` is that of the container whose store it is; null for a checkpoint as published.
  ModelSource(const ModelConfig& config, const TensorStore& store, const ContainerCheck* check);
  /// Error(kRuntime) where a file cannot be read. Error(kBadModel) where a scale of a published
  /// expert is no number, and, by the last byte of an extent of a container, where that has another
  /// checksum than was noted, or cannot be decoded.
  void Read(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) override;

 private:
  // Both return the size of the whole extent.
  uint64_t ReadTensor(const ExtentUse& use, uint64_t offset, std::span<std::byte> out);
  uint64_t ReadExpert(const ExtentUse& use, uint64_t offset, std::span<std::byte> out);
  const TensorExtent& TrunkExtent(const ExtentUse& use) const;
  void NextGroup(const TensorExtent& extent);
  void ReadScales(const ExpertExtent& extent);
  void Fetch(size_t file, uint64_t offset, std::span<std::byte> out);
  size_t TakeDecoded(std::span<std::byte> out);
  void CheckScales(const ExtentUse& use, const File& file, std::span<const std::byte> scales) const;
  void CheckWhole(const ExtentUse& use) const;

  const ModelConfig& config_;
  const TensorStore& store_;
  const ContainerCheck* check_;
  std::vector<File> files_;
  // Of the extent that is being read.
  Checksum checksum_;  // of its bytes as stored, so far
  size_t next_row_ = 0;
  bool undecodable_ = false;  // its checksum will say why, but at its end
  std::vector<uint8_t> coded_;
  std::vector<uint16_t> elements_;
  std::vector<uint8_t> scales_;
  std::span<const std::byte> decoded_;  // what is left of either
};

/// The E8M0 byte that stands for no number; quantisation never produces it.
inline constexpr std::byte kScaleNan{0xff};

}  // namespace thimble
