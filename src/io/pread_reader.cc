#include "io/pread_reader.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>

#include "io/read_queue.h"

namespace thimble {
namespace {

class PreadReader final : public FileReader {
 public:
  PreadReader(std::vector<File> files, const QueueShape& shape, const std::string& kind)
      : files_(std::move(files)),
        description_(kind + ", depth " + FormatShape(shape)),
        queue_(shape.piece_bytes) {
    for (size_t i = 0; i < shape.depth; ++i) threads_.emplace_back([this] { Work(); });
  }

  ~PreadReader() override {
    queue_.Close();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(std::span<const ReadRequest> requests, ReadPriority priority,
              ReadBatch& batch) override {
    queue_.Push(requests, priority, batch);
  }
  std::string Describe() const override { return description_; }
  uint64_t read_bytes() const override { return read_bytes_.load(std::memory_order_relaxed); }

 private:
  void Work() {
    while (auto piece = queue_.Pop()) {
      PieceState state;
      while (!state.over) state = Advance(files_[piece->file], Read(*piece), &*piece);
      queue_.Finish(*piece, state.error);
    }
  }

  int64_t Read(const ReadPiece& piece) {
    const ssize_t got = ::pread(files_[piece.file].descriptor(), piece.out + piece.done_bytes,
                                piece.bytes - piece.done_bytes,
                                static_cast<off_t>(piece.offset + piece.done_bytes));
    if (got < 0) return -errno;
    read_bytes_.fetch_add(static_cast<uint64_t>(got), std::memory_order_relaxed);
    return got;
  }

  const std::vector<File> files_;
  const std::string description_;
  ReadQueue queue_;
  std::atomic<uint64_t> read_bytes_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<FileReader> NewPreadReader(std::vector<File> files, const QueueShape& shape,
                                           const std::string& kind) {
  return std::make_unique<PreadReader>(std::move(files), shape, kind);
}

}  // namespace thimble
