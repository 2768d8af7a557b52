#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "io/file.h"
#include "io/read_queue.h"

namespace thimble {

/// Brings what is left of a piece by a call that blocks; the number of bytes that came, or a
/// negative errno.
using BringPiece = int64_t (*)(const File& file, const ReadPiece& piece);

/// By pread(2).
int64_t PreadPiece(const File& file, const ReadPiece& piece);

/// What threads that read by blocking calls share.
struct PieceServer {
  const std::vector<File>& files;
  BringPiece bring;
  std::atomic<uint64_t>& read_bytes;  // what came so far

  /// Brings all that is left of a piece and ends it.
  void Serve(ReadQueue& queue, ReadPiece& piece) const;
  /// Serves one piece after the other until the queue is closed and empty.
  void ServeAll(ReadQueue& queue) const;
};

}  // namespace thimble
