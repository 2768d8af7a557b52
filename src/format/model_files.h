#pragma once

#include <filesystem>
#include <string>

namespace thimble {

// The files of a published checkpoint.
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kGenerationConfigFile = "generation_config.json";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
inline constexpr const char* kSingleShardFile = "model.safetensors";

/// Error(kBadModel), naming the reason, unless `dir` is a directory that can be entered.
void CheckModelDirectory(const std::filesystem::path& dir);

/// The directory of the model's files. The hub's tools keep a model in a cache, under
/// models--org--name/snapshots/<commit>: of that folder, or of a cache with one model, the snapshot
/// that was downloaded last; any other path is returned as it is. Error(kBadModel) naming the
/// choice where a cache holds several models, or a model no snapshot.
std::filesystem::path ResolveModelDirectory(const std::filesystem::path& path);

/// What to do about a directory without the files that are needed: names what is there in their
/// place, weights in another format or folders with models.
std::string MissingFilesRemedy(const std::filesystem::path& dir);

/// True where `path` exists; Error(kBadModel) where the system does not let that be known.
bool FileExists(const std::filesystem::path& path);

}  // namespace thimble
