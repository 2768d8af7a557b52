#include "io/device_reads.h"

#include <fmt/format.h>

#include <fstream>
#include <utility>

#include "base/byte_size.h"

namespace thimble {
namespace {

// Less than this share of what came: the rest came from elsewhere.
constexpr double kLeastShare = 0.9;

}  // namespace

std::optional<uint64_t> DeviceReadBytes(const SystemTree& tree) {
  std::ifstream file(tree.At("proc/self/io"));
  std::string name;
  for (uint64_t value = 0; file >> name >> value;) {
    if (name == "read_bytes:") return value;
  }
  return std::nullopt;
}

DeviceWatch::DeviceWatch(SystemTree tree)
    : tree_(std::move(tree)), before_(DeviceReadBytes(tree_)) {}

std::string DeviceWatch::Obstacle(uint64_t bytes) const {
  const auto after = DeviceReadBytes(tree_);
  if (!before_ || !after) return "the kernel does not say what the drive read (/proc/self/io)";
  const uint64_t device = *after - *before_;
  const double share = static_cast<double>(device) / static_cast<double>(bytes);
  if (bytes == 0 || share >= kLeastShare) return {};
  return fmt::format(
      "of {} the drive delivered {} ({:.0f} %): the rest came from the page cache, from holes or "
      "compressed parts of the files, or from a file system that another program serves",
      FormatBytes(bytes), FormatBytes(device), 100 * share);
}

}  // namespace thimble
