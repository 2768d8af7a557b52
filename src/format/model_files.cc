#include "format/model_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "io/file.h"

namespace thimble {
namespace {

constexpr std::string_view kCachedModel = "models--";
constexpr uint64_t kMaxRefBytes = 4096;
constexpr size_t kMaxNamed = 8;

// Names of the entries of `dir` for which `wanted` holds, sorted; none where it cannot be listed.
template <typename Wanted>
std::vector<std::string> ListNames(const std::filesystem::path& dir, const Wanted& wanted) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    if (wanted(entry.path())) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::string Join(std::vector<std::string> names) {
  const size_t more = names.size() - std::min(names.size(), kMaxNamed);
  names.resize(names.size() - more);
  const std::string text = fmt::format("{}", fmt::join(names, ", "));
  return more == 0 ? text : fmt::format("{} and {} more", text, more);
}

// The snapshot of a cached model that refs/main names, else the only one.
std::filesystem::path FindSnapshot(const std::filesystem::path& model) {
  const std::filesystem::path snapshots = model / "snapshots";
  const std::filesystem::path ref = model / "refs" / "main";
  std::error_code error;
  if (std::filesystem::is_regular_file(ref, error)) {
    std::string commit = ReadTextFile(ref, kMaxRefBytes);
    commit.erase(std::find_if(commit.begin(), commit.end(),
                              [](unsigned char c) { return std::isxdigit(c) == 0; }),
                 commit.end());
    if (!commit.empty() && std::filesystem::is_directory(snapshots / commit, error)) {
      return snapshots / commit;
    }
  }
  const std::vector<std::string> all = ListNames(snapshots, [](const auto& path) {
    std::error_code unknown;
    return std::filesystem::is_directory(path, unknown);
  });
  if (all.size() == 1) return snapshots / all[0];
  throw Error(ErrorCode::kBadModel,
              all.empty()
                  ? fmt::format("{} holds no snapshot; download the model again", model.string())
                  : fmt::format("{} holds several snapshots; give one of them: {}",
                                snapshots.string(), Join(all)));
}

}  // namespace

void CheckModelDirectory(const std::filesystem::path& dir) {
  std::error_code error;
  const bool is_directory = std::filesystem::is_directory(dir, error);
  if (is_directory) return;
  const std::string reason = error ? error.message() : "it is a file, expected a directory";
  throw Error(
      ErrorCode::kBadModel,
      fmt::format("cannot open the model directory {}: {}; give the directory that holds {}",
                  dir.string(), reason, kConfigFile));
}

bool FileExists(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error && status.type() == std::filesystem::file_type::none) {
    throw Error(
        ErrorCode::kBadModel,
        fmt::format("cannot read {}: {}; check the link, or the permissions of the directory",
                    path.string(), error.message()));
  }
  return std::filesystem::exists(status);
}

std::filesystem::path ResolveModelDirectory(const std::filesystem::path& path) {
  std::error_code error;
  const auto has = [&](const char* name) { return std::filesystem::exists(path / name, error); };
  if (has(kConfigFile)) return path;
  if (has("snapshots") && (has("refs") || has("blobs"))) return FindSnapshot(path);
  const std::vector<std::string> models = ListNames(path, [](const std::filesystem::path& entry) {
    return entry.filename().string().starts_with(kCachedModel);
  });
  if (models.size() == 1) return FindSnapshot(path / models[0]);
  if (models.size() > 1) {
    throw Error(ErrorCode::kBadModel, fmt::format("{} is a cache of several models; give one: {}",
                                                  path.string(), Join(models)));
  }
  if (ListNames(path / "hub", [](const std::filesystem::path& entry) {
        return entry.filename().string().starts_with(kCachedModel);
      }).empty()) {
    return path;
  }
  return ResolveModelDirectory(path / "hub");
}

std::string MissingFilesRemedy(const std::filesystem::path& dir) {
  for (const char* extension : {".gguf", ".bin", ".pt", ".pth", ".ckpt"}) {
    const std::vector<std::string> others = ListNames(
        dir, [&](const std::filesystem::path& path) { return path.extension() == extension; });
    if (others.empty()) continue;
    return fmt::format(
        "it holds weights in another format ({}); Thimble reads safetensors: download the model as "
        "its makers published it",
        Join(others));
  }
  const std::vector<std::string> models = ListNames(dir, [](const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::exists(path / kConfigFile, error);
  });
  if (!models.empty()) return fmt::format("give one of the directories in it: {}", Join(models));
  return "give the directory of a model, or download the model again";
}

}  // namespace thimble
