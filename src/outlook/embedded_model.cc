#include "outlook/embedded_model.h"

#include <system_error>

#include "base/error.h"

namespace thimble {

std::filesystem::path ModelOrEmbedded(const std::filesystem::path& given) {
  if (!given.empty()) return given;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto folder = program.parent_path();
  // Installed, then in a build tree of the repository.
  for (const char* place : {"../share/thimble/models/mini", "../../models/mini"}) {
    auto candidate = (folder / place).lexically_normal();
    if (std::filesystem::exists(candidate / "config.json", error)) return candidate;
  }
  throw Error(ErrorCode::kBadModel,
              "the small model that comes with Thimble was not found beside " + program.string() +
                  "; name a model directory with -m");
}

}  // namespace thimble
