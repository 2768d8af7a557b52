#include "cli/outputs.h"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

constexpr int kMaxNames = 100;

std::vector<std::filesystem::path> RescueFolders() {
  std::vector<std::filesystem::path> folders;
  for (const char* variable : {"TMPDIR", "HOME"}) {
    const char* folder = std::getenv(variable);
    if (folder != nullptr && *folder != '\0') folders.emplace_back(folder);
  }
  folders.emplace_back("/tmp");
  return folders;
}

// A name in `folder` that nothing has yet.
std::optional<std::filesystem::path> FreeName(const std::filesystem::path& folder,
                                              const std::filesystem::path& named) {
  for (int i = 1; i <= kMaxNames; ++i) {
    const auto path = folder / fmt::format("{}.rescued-{}", named.filename().string(), i);
    std::error_code error;
    const auto kind = std::filesystem::symlink_status(path, error).type();
    if (kind == std::filesystem::file_type::not_found) return path;
  }
  return std::nullopt;
}

std::optional<std::filesystem::path> Rescue(
    const std::filesystem::path& named,
    const std::function<void(const std::filesystem::path&)>& save_elsewhere) {
  for (const std::filesystem::path& folder : RescueFolders()) {
    std::optional<std::filesystem::path> path = FreeName(folder, named);
    if (!path) continue;
    try {
      save_elsewhere(*path);
      return path;
    } catch (const Error&) {
      continue;  // the next folder may have room
    }
  }
  return std::nullopt;
}

}  // namespace

void CheckDistinct(const std::vector<std::filesystem::path>& files) {
  std::set<std::filesystem::path> seen;
  for (const std::filesystem::path& file : files) {
    std::error_code error;
    const auto status = std::filesystem::status(file, error);
    const bool is_file =
        !std::filesystem::exists(status) || std::filesystem::is_regular_file(status);
    if (file.empty() || !is_file) continue;
    const auto name = std::filesystem::weakly_canonical(std::filesystem::absolute(file), error);
    if (seen.insert(error ? file : name).second) continue;
    throw Error(ErrorCode::kUsage,
                fmt::format("two outputs name {}; give each a file of its own", file.string()));
  }
}

void SaveOrRescue(const std::filesystem::path& named, const std::function<void()>& save,
                  const std::function<void(const std::filesystem::path&)>& save_elsewhere) {
  try {
    save();
  } catch (const Error& error) {
    const auto place = Rescue(named, save_elsewhere);
    throw Error(error.code(),
                place
                    ? fmt::format("{}\nIt was saved as {} instead.", error.what(), place->string())
                    : fmt::format("{}\nIt could not be saved in $TMPDIR, $HOME or /tmp either.",
                                  error.what()));
  }
}

void LastSteps::Do(const std::function<void()>& step) {
  try {
    step();
  } catch (const StandardOutputError& error) {
    if (!failure_) failure_ = std::current_exception();
  } catch (const std::exception& error) {
    if (failure_) {
      Note("thimble: {}\n", error.what());
    } else {
      failure_ = std::current_exception();
    }
  }
}

void LastSteps::ThrowFailure() const {
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace thimble::cli
