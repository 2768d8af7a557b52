#pragma once

#include <filesystem>

#include "base/system_tree.h"

namespace thimble {

/// The directory to open: what was given, of a cache the snapshot in it, or the embedded model.
/// Error(kBadModel) where that is not installed.
std::filesystem::path ModelOrEmbedded(const std::filesystem::path& given,
                                      const SystemTree& tree = {});

}  // namespace thimble
