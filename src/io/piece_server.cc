#include "io/piece_server.h"

#include <unistd.h>

#include <cerrno>

namespace thimble {

int64_t PreadPiece(const File& file, const ReadPiece& piece) {
  const ssize_t got =
      ::pread(file.descriptor(), piece.out + piece.done_bytes, piece.bytes - piece.done_bytes,
              static_cast<off_t>(piece.offset + piece.done_bytes));
  return got < 0 ? -errno : got;
}

void PieceServer::Serve(ReadQueue& queue, ReadPiece& piece) const {
  const File& file = files[piece.file];
  PieceState state;
  while (!state.over) {
    const int64_t answer = bring(file, piece);
    if (answer > 0) {
      read_bytes.fetch_add(static_cast<uint64_t>(answer), std::memory_order_relaxed);
    }
    state = Advance(file, answer, &piece);
    if (state.pause) ::usleep(kRetryPauseMicroseconds);
  }
  queue.Finish(piece, state.error);
}

void PieceServer::ServeAll(ReadQueue& queue) const {
  while (auto piece = queue.Pop()) Serve(queue, *piece);
}

}  // namespace thimble
