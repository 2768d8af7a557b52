#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "pack/container_writer.h"

namespace thimble {

/// Packs the checkpoint in `model` into a container: core and small files in `directories[0]`, the
/// experts in all of them by turns. What WriteContainer says holds; Error(kBadModel) where the
/// checkpoint is damaged, Error(kUsage) where it is a container already, or where experts are to be
/// quantised that are MXFP4 already. The container's config.json then says that they are MXFP4.
PackResult PackModel(const std::filesystem::path& model,
                     const std::vector<std::filesystem::path>& directories,
                     const WriteOptions& options, PackObserver* observer);

}  // namespace thimble
