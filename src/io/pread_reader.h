#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/file_reader.h"
#include "io/queue_shape.h"

namespace thimble {

/// A reader of shape.depth threads that call pread(2) on `files`, opened with O_DIRECT or without.
/// `kind` is how it describes itself.
std::unique_ptr<FileReader> NewPreadReader(std::vector<File> files, const QueueShape& shape,
                                           const std::string& kind);

}  // namespace thimble
