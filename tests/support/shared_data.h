#pragma once

#include <cstdlib>
#include <filesystem>

namespace thimble {

/// The data that lie beside the source tree and are too large for it: fixtures/ and data/. Tests
/// that need them skip, with this path in the reason, where they are absent.
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
