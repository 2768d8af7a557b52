#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "pack/container_writer.h"

namespace thimble {

/// Packs `model`, a checkpoint as published or a container, into a container: core and small files
/// in `directories[0]`, the experts in all of them by turns. What is coded in a container is
/// decoded first, so that the result is to the byte what the checkpoint itself gives with the same
/// options. What was quantised stays so, to the byte, and marked; what a synthetic one stores once
/// for several layers or experts is stored once again.
///
/// What WriteContainer says holds. Error(kBadModel) where the model is damaged: of a container,
/// where an extent has not its checksum; of a checkpoint, where a shard has not its published hash,
/// which is checked before anything is written. Error(kUsage) where a directory is that of the
/// model or inside it, and where something is to be quantised that is already. Where experts are
/// quantised, the container's config.json says that they are MXFP4.
PackResult PackModel(const std::filesystem::path& model,
                     const std::vector<std::filesystem::path>& directories,
                     const WriteOptions& options, PackObserver* observer);

}  // namespace thimble
