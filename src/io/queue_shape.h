#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
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

/// Memory that a measurement reads into.
inline constexpr size_t kMeasureBytes = 16 * kMiB;

/// The gentlest shape that reads `file` about as fast as any, by a measurement past the page cache,
/// or the default where the drive is so slow that measuring would take long. `file` holds at least
/// 64 MiB; io_uring and O_DIRECT work on it. `scratch` holds kMeasureBytes, aligned as reads must
/// be, best in large pages, as the memory has that weights are read to.
QueueShape MeasureShape(const std::filesystem::path& file, std::span<std::byte> scratch);

}  // namespace thimble
