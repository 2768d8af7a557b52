#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <utility>

#include "format/container.h"
#include "format/model_config.h"

namespace thimble {

/// Compares what is read of a packed model with its checksums. Immutable; safe from any thread.
class ContainerCheck {
 public:
  /// Error(kUsage) where `dir` holds a model as downloaded: its makers publish no checksums in it.
  /// Error(kBadModel) as OpenContainer.
  static ContainerCheck Open(const std::filesystem::path& dir, const ModelConfig& config);

  /// Reads the whole trunk, embedding included, 1 MiB at a time. Error(kBadModel) naming file,
  /// place, layer and tensor of the first extent that is damaged, Error(kRuntime) where a read
  /// fails. `on_read(done, total)` is told of bytes; may be empty.
  void CheckTrunk(const std::function<void(uint64_t, uint64_t)>& on_read) const;

  /// `bytes` is what was read of an expert, from its first byte on. Error(kBadModel) as above.
  void CheckExpert(size_t layer, size_t expert, std::span<const std::byte> bytes) const;

  /// `found` is the checksum of what was read of a tensor's or expert's extent, all of it.
  /// Error(kBadModel) as above.
  void Check(const ExtentUse& use, uint64_t found) const;

  const Container& container() const { return container_; }
  /// The file in which an extent lies.
  const std::filesystem::path& PathOf(const ExtentUse& use) const;

 private:
  explicit ContainerCheck(Container container) : container_(std::move(container)) {}
  size_t ExtentOf(const ExtentUse& use) const;

  Container container_;
};

}  // namespace thimble
