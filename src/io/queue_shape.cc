#include "io/queue_shape.h"

namespace thimble {

std::string FormatShape(const QueueShape& shape) {
  const bool whole = shape.piece_bytes % kMiB == 0;
  return std::to_string(shape.depth) + " x " +
         std::to_string(shape.piece_bytes / (whole ? kMiB : kKiB)) + (whole ? " MiB" : " KiB");
}

}  // namespace thimble
