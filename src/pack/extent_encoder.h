#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "format/container.h"
#include "pack/container_writer.h"

namespace thimble {

/// The bytes of extents as the container stores them: tensors that the manifest calls coded are
/// coded group by group, the scales of an expert all at once where that is shorter, and what was
/// coded is decoded again and compared with what it was made from; all else passes through. Holds
/// one group, or the scales of one expert. Borrows its arguments.
class ExtentEncoder {
 public:
  ExtentEncoder(const ContainerManifest& manifest, ExtentSource& source)
      : manifest_(manifest), source_(source) {}

  /// Fills the start of `out` with the bytes of the extent from `offset` on, and says how many;
  /// none at its end. Each extent is read front to back. Error(kRuntime) where something decodes to
  /// other bytes, which faulty memory makes happen.
  size_t Read(const ExtentUse& use, uint64_t offset, std::span<std::byte> out);

 private:
  size_t ReadPlain(const ExtentUse& use, uint64_t offset, uint64_t end, std::span<std::byte> out);
  size_t TakeCoded(std::span<std::byte> out);
  void CodeScales(const ExtentUse& use);
  bool NextGroup(const ExtentUse& use, const ContainerTensor& tensor);
  void CheckGroup(const ExtentUse& use, size_t rows, size_t cols);
  [[noreturn]] void FailCompare(const ExtentUse& use) const;

  const ContainerManifest& manifest_;
  ExtentSource& source_;
  std::vector<uint16_t> elements_;  // of the group
  std::vector<uint16_t> decoded_;   // the same, decoded again
  std::vector<uint8_t> scales_;     // of the expert
  std::vector<uint8_t> coded_;      // either of these, coded
  size_t taken_ = 0;                // bytes of coded_
  size_t next_row_ = 0;             // of the tensor, after the group
};

}  // namespace thimble
