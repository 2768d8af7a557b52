#include "io/thread_reader.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include "base/checked_math.h"
#include "base/start_thread.h"
#include "io/mapped_files.h"
#include "io/piece_server.h"
#include "io/read_queue.h"

namespace thimble {
namespace {

// Starts to read [pages, pages + bytes) of a mapped file. The kernel reads no more for one call
// than its read-ahead, of which this is the usual size.
void StartReading(std::byte* pages, size_t bytes) {
  constexpr size_t kStep = size_t{128} << 10;
  for (size_t at = 0; at < bytes; at += kStep) {
    ::madvise(pages + at, std::min(kStep, bytes - at), MADV_WILLNEED);
  }
}

// Waits until all pages are there, so that computing meets no fault. A negative errno where one
// cannot be had.
int64_t FaultIn(std::byte* pages, size_t bytes) {
  if (::madvise(pages, bytes, MADV_POPULATE_READ) == 0) return 0;
  // EFAULT: touching a page would raise SIGBUS.
  if (errno != EINVAL) return errno == EFAULT ? -EIO : -errno;
  for (size_t at = 0; at < bytes; at += kPageBytes) {  // before Linux 5.14
    [[maybe_unused]] const volatile std::byte touched = pages[at];
  }
  return 0;
}

int64_t MapPiece(const File& file, const ReadPiece& piece) {
  struct stat status = {};
  if (::fstat(file.descriptor(), &status) != 0) return -errno;
  const uint64_t offset = piece.offset + piece.done_bytes;
  const auto size = static_cast<uint64_t>(status.st_size);
  if (offset >= size) return 0;
  const uint64_t there = std::min<uint64_t>(piece.bytes - piece.done_bytes, size - offset);
  const size_t bytes = RoundUp<uint64_t>(there, kPageBytes);
  void* const mapped = ::mmap(piece.out + piece.done_bytes, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file.descriptor(),
                              static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return -errno;
  auto* const pages = static_cast<std::byte*>(mapped);
  // Experts lie anywhere: what follows one is of no use. The trunk is read on and on.
  const bool in_order = piece.job->priority == ReadPriority::kAhead;
  ::madvise(pages, bytes, in_order ? MADV_NORMAL : MADV_RANDOM);
  StartReading(pages, bytes);
  const int64_t error = FaultIn(pages, bytes);
  return error != 0 ? error : static_cast<int64_t>(there);
}

class ThreadReader final : public FileReader {
 public:
  ThreadReader(std::vector<File> files, const QueueShape& shape, const std::string& kind,
               BringPiece bring)
      : files_(std::move(files)),
        description_(kind + ", depth " + FormatShape(shape)),
        server_{files_, bring, read_bytes_},
        queue_(shape.piece_bytes) {
    if (bring == MapPiece) watch_.emplace(files_);
    try {
      for (size_t i = 0; i < shape.depth; ++i) {
        threads_.push_back(StartThread(fmt::format("reading thread {} of {}", i + 1, shape.depth),
                                       [this] { server_.ServeAll(queue_); }));
      }
    } catch (...) {
      Stop();  // threads that nobody joins would end the process
      throw;
    }
  }

  ~ThreadReader() override { Stop(); }

  void Submit(std::span<const ReadRequest> requests, ReadPriority priority,
              ReadBatch& batch) override {
    queue_.Push(requests, priority, batch);
  }
  size_t Withdraw(ReadBatch& batch) override { return queue_.Withdraw(batch); }
  std::string Describe() const override { return description_; }
  uint64_t read_bytes() const override { return read_bytes_.load(std::memory_order_relaxed); }
  std::string Lost() const override { return watch_ ? watch_->Lost() : std::string(); }

 private:
  void Stop() {
    queue_.Close();
    for (std::thread& thread : threads_) thread.join();
  }

  const std::vector<File> files_;
  const std::string description_;
  std::atomic<uint64_t> read_bytes_ = 0;
  const PieceServer server_;
  std::optional<MappedFiles> watch_;
  ReadQueue queue_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<FileReader> NewPreadReader(std::vector<File> files, const QueueShape& shape,
                                           const std::string& kind) {
  return std::make_unique<ThreadReader>(std::move(files), shape, kind, PreadPiece);
}

std::unique_ptr<FileReader> TryNewMapReader(std::vector<File>* files, const QueueShape& shape) {
  if (!std::ranges::all_of(*files, MappedFiles::CanMap)) return nullptr;
  return std::make_unique<ThreadReader>(std::move(*files), shape, "mmap", MapPiece);
}

}  // namespace thimble
