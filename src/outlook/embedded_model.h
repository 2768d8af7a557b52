#pragma once

#include <filesystem>

namespace thimble {

/// The directory to open: what was given, or the embedded model. Error(kBadModel) where that is not
/// installed.
std::filesystem::path ModelOrEmbedded(const std::filesystem::path& given);

}  // namespace thimble
