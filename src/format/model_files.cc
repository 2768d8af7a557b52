#include "format/model_files.h"

#include <string>
#include <system_error>

#include "base/error.h"

namespace thimble {

void CheckModelDirectory(const std::filesystem::path& dir) {
  std::error_code error;
  const bool is_directory = std::filesystem::is_directory(dir, error);
  if (is_directory) return;
  const std::string reason = error ? error.message() : "it is a file, expected a directory";
  throw Error(ErrorCode::kBadModel, "cannot open the model directory " + dir.string() + ": " +
                                        reason + "; give the directory that holds config.json");
}

bool FileExists(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error && status.type() == std::filesystem::file_type::none) {
    throw Error(ErrorCode::kBadModel, "cannot read " + path.string() + ": " + error.message() +
                                          "; check the permissions of the directory");
  }
  return std::filesystem::exists(status);
}

}  // namespace thimble
