#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/system_tree.h"

namespace thimble {

/// Bytes that this process has had block devices and network file systems read, direct reads among
/// them (read_bytes of /proc/self/io). What the page cache held, holes, and what a user-space file
/// system served are not counted. Nothing where the kernel does not say.
std::optional<uint64_t> DeviceReadBytes(const SystemTree& tree = {});

/// Watches whether reads meet the drive.
class DeviceWatch {
 public:
  explicit DeviceWatch(SystemTree tree = {});
  /// Why a rate by `bytes` that came since the start would not be the drive's; empty where it
  /// would.
  std::string Obstacle(uint64_t bytes) const;

 private:
  const SystemTree tree_;
  const std::optional<uint64_t> before_;
};

}  // namespace thimble
