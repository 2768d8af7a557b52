#include "outlook/embedded_model.h"

#include <fmt/format.h>
#include <sys/auxv.h>

#include <system_error>

#include "base/error.h"
#include "format/model_files.h"

namespace thimble {
namespace {

// The file that this process runs, free of links; empty where nothing says. Without /proc the
// kernel still tells by what path the program was started.
std::filesystem::path ProgramPath(const SystemTree& tree) {
  std::error_code error;
  std::filesystem::path program = std::filesystem::read_symlink(tree.At("proc/self/exe"), error);
  if (!error) return program;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel's own interface
  const auto* started = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  if (started == nullptr) return {};
  const auto path = std::filesystem::canonical(started, error);
  return error ? std::filesystem::path() : path;
}

}  // namespace

std::filesystem::path ModelOrEmbedded(const std::filesystem::path& given, const SystemTree& tree) {
  if (!given.empty()) return ResolveModelDirectory(given);
  const auto program = ProgramPath(tree);
  if (program.empty()) {
    throw Error(ErrorCode::kBadModel,
                "the small model that comes with Thimble was not found: without /proc the place of "
                "the program is unknown; mount /proc, or name a model directory with -m");
  }
  // Installed, then in a build tree of the repository.
  for (const char* place : {"../share/thimble/models/mini", "../../models/mini"}) {
    auto candidate = (program.parent_path() / place).lexically_normal();
    std::error_code error;
    if (std::filesystem::exists(candidate / "config.json", error)) return candidate;
  }
  throw Error(ErrorCode::kBadModel,
              fmt::format("the small model that comes with Thimble was not found beside {}; name a "
                          "model directory with -m",
                          program.string()));
}

}  // namespace thimble
