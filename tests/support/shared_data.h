#pragma once

#include <cstdlib>
#include <filesystem>

namespace thimble {

/// Files that the repository does not carry, because they are other people's: the configuration,
/// index and tokenizer of Kimi K3. They lie beside the source tree, or where $THIMBLE_SHARED says;
/// tests that need them skip, with the path in the reason, where they are absent.
inline std::filesystem::path SharedDir() {
  const char* dir = std::getenv("THIMBLE_SHARED");
  return dir != nullptr ? dir : THIMBLE_SOURCE_DIR "/../shared";
}

}  // namespace thimble

/// Skips the current test where `relative` is not among the shared data.
#define THIMBLE_NEED_SHARED(relative)                                \
  if (!std::filesystem::exists(::thimble::SharedDir() / (relative))) \
  GTEST_SKIP() << (::thimble::SharedDir() / (relative))              \
               << " is absent; set THIMBLE_SHARED to "               \
                  "the folder that holds it"
