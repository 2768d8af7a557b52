#pragma once

#include <filesystem>
#include <string>

namespace thimble {

/// Where the kernel's own file systems are mounted: below "/", or below a copy of them, which tests
/// put in its place.
struct SystemTree {
  std::filesystem::path root = "/";

  /// `path` is without a leading slash: "proc/self/status".
  std::filesystem::path At(const std::string& path) const { return root / path; }
};

}  // namespace thimble
