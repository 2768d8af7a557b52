#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "support/file_edit.h"

namespace thimble {

/// Every file below `dir`, by its relative path, with its bytes.
inline std::map<std::string, std::string> DirectoryBytes(const std::filesystem::path& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    if (!entry.is_regular_file()) continue;
    files[entry.path().lexically_relative(dir).string()] = ReadBytes(entry.path());
  }
  return files;
}

/// Inverts one bit of a file.
inline void FlipBit(const std::filesystem::path& path, size_t offset) {
  const std::string bytes = ReadBytes(path);
  Overwrite(path, offset, std::string(1, static_cast<char>(bytes.at(offset) ^ 1)));
}

}  // namespace thimble
