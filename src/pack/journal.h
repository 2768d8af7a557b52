#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/disk_file.h"
#include "pack/weight_loss.h"

namespace thimble {

/// What a writer of a container has brought to the drive: size, checksum and loss of every extent
/// whose bytes are there for certain. A text file: a line that names the container, then a line for
/// each extent, each with a checksum of its own, so that a torn last line is told from a whole one.
/// One process at a time; locked while open.
class Journal {
 public:
  struct Entry {
    size_t extent = 0;
    uint64_t bytes = 0;
    uint64_t checksum = 0;
    WeightLoss loss = {};  // zero where nothing was quantised
  };

  /// Opens or starts the journal at `path`. Error(kUsage) where it is of another container than
  /// `identity`, or where another process is writing.
  Journal(const std::filesystem::path& path, const std::string& identity, size_t num_extents);

  /// The entry of an extent that is on the drive.
  const std::optional<Entry>& Find(size_t extent) const { return entries_[extent]; }
  /// Adds entries; on the drive when this returns. The extents must be there already.
  void Append(std::span<const Entry> entries);
  /// Removes the file: the container is complete.
  void Remove();

 private:
  void Load(const std::string& head);

  std::filesystem::path path_;
  std::unique_ptr<DiskFile> file_;
  uint64_t end_ = 0;
  std::vector<std::optional<Entry>> entries_;  // [extent]
};

}  // namespace thimble
