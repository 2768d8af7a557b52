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

/// A reader that copies nothing: its threads map the pages of a file in place of the memory of the
/// request, and bring them in. What was in that memory is dropped; whole pages of it must belong to
/// the consumer, as those of a Buffer do. Writing to it changes the memory alone. The pages are the
/// page cache's own, so the kernel may drop and fetch them again at any time.
///
/// A file that is shortened later takes mapped weights away: they read as zeros from then on, and
/// Lost() says so for good (io/mapped_files.h). Null, with `*files` as it was, where the file
/// system of one of them cannot map.
std::unique_ptr<FileReader> TryNewMapReader(std::vector<File>* files, const QueueShape& shape);

}  // namespace thimble
