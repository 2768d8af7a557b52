#pragma once

#include <cstddef>
#include <string>

#include "base/byte_size.h"

namespace thimble {

/// How a reader loads the drive: at most `depth` reads in flight, each of at most `piece_bytes`, a
/// multiple of BlockReader::kAlignment. Their product bounds how long a demanded read has to wait
/// for those before it. Each read costs time of a core, so few large ones are cheaper than many
/// small ones.
struct QueueShape {
  size_t depth = 4;
  size_t piece_bytes = 4 * kMiB;
};

/// "4 x 4 MiB".
std::string FormatShape(const QueueShape& shape);

}  // namespace thimble
