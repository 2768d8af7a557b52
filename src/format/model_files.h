#pragma once

#include <filesystem>

namespace thimble {

// The files of a published checkpoint.
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kGenerationConfigFile = "generation_config.json";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
inline constexpr const char* kSingleShardFile = "model.safetensors";

/// Error(kBadModel), naming the reason, unless `dir` is a directory that can be entered.
void CheckModelDirectory(const std::filesystem::path& dir);

/// True where `path` exists; Error(kBadModel) where the system does not let that be known.
bool FileExists(const std::filesystem::path& path);

}  // namespace thimble
