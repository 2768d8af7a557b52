#pragma once

#include <memory>
#include <vector>

#include "io/file.h"
#include "io/file_reader.h"
#include "io/queue_shape.h"

namespace thimble {

/// A reader of one thread that drives an io_uring and sleeps in the kernel. Takes `files`, opened
/// with O_DIRECT, out of the vector; null, and they stay there, where the kernel has no io_uring
/// (5.6 or later) or does not let this process use it. Error(kRuntime) where the thread cannot be
/// started. A ring that fails later is replaced by threads that call pread(2).
std::unique_ptr<FileReader> TryNewUringReader(std::vector<File>* files, const QueueShape& shape);

}  // namespace thimble
