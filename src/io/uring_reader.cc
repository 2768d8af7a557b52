#include "io/uring_reader.h"

#include <fmt/format.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/start_thread.h"
#include "io/piece_server.h"
#include "io/read_queue.h"

namespace thimble {
namespace {

// An io_uring, torn down at the end of its scope.
class Ring {
 public:
  Ring() = default;
  ~Ring() {
    if (open_) ::io_uring_queue_exit(&ring_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  bool TryOpen(size_t entries) {
    open_ = ::io_uring_queue_init(static_cast<unsigned>(entries), &ring_, 0) == 0;
    return open_ && CanRead();
  }
  io_uring* get() { return &ring_; }

  // The tags of entries that are prepared and that the kernel has not taken.
  std::vector<uint64_t> Untaken() const {
    const io_uring_sq& queue = ring_.sq;
    std::vector<uint64_t> tags;
    for (unsigned at = queue.sqe_tail - ::io_uring_sq_ready(&ring_); at != queue.sqe_tail; ++at) {
      tags.push_back(queue.sqes[at & *queue.kring_mask].user_data);
    }
    return tags;
  }

 private:
  // The plain read operation came with Linux 5.6, as this feature did. Sandboxes may let a ring be
  // set up and refuse to enter it, hence the trial.
  bool CanRead() {
    if ((ring_.features & IORING_FEAT_RW_CUR_POS) == 0) return false;
    ::io_uring_prep_nop(::io_uring_get_sqe(&ring_));
    if (::io_uring_submit(&ring_) != 1) return false;
    io_uring_cqe* completion = nullptr;
    int result = -EINTR;
    while (result == -EINTR) result = ::io_uring_wait_cqe(&ring_, &completion);
    if (result != 0) return false;
    ::io_uring_cqe_seen(&ring_, completion);
    return true;
  }

  io_uring ring_ = {};
  bool open_ = false;
};

// A counter in the kernel that a read of the ring waits for.
class WakeUp {
 public:
  WakeUp() : descriptor_(::eventfd(0, EFD_CLOEXEC)) {}
  ~WakeUp() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;

  bool open() const { return descriptor_ >= 0; }
  void Signal() const {
    const uint64_t one = 1;
    while (::write(descriptor_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }
  void PrepareWait(io_uring_sqe* entry) {
    ::io_uring_prep_read(entry, descriptor_, &count_, sizeof(count_), 0);
  }

 private:
  int descriptor_;
  uint64_t count_ = 0;
};

// Where io_uring_enter fails for good - a sandbox that closes behind the program, a ring that is
// taken away - the reads that the kernel has not begun, and all later ones, go by pread(2).
class UringReader final : public FileReader {
 public:
  explicit UringReader(const QueueShape& shape) : shape_(shape), queue_(shape.piece_bytes) {}

  ~UringReader() override {
    queue_.Close();
    if (!thread_.joinable()) return;
    wake_up_.Signal();
    thread_.join();
  }

  // False, with no effect, where the kernel does not play along.
  bool TryStart(std::vector<File>* files) {
    if (!wake_up_.open() || !ring_.TryOpen(shape_.depth + 1)) return false;
    slots_.resize(shape_.depth);
    for (size_t i = 0; i < slots_.size(); ++i) free_.push_back(i);
    files_ = std::move(*files);
    thread_ = StartThread("the reading thread", [this] { Work(); });
    return true;
  }

  void Submit(std::span<const ReadRequest> requests, ReadPriority priority,
              ReadBatch& batch) override {
    // A thread with a full ring needs no call: it looks here as soon as a read completes.
    if (queue_.Push(requests, priority, batch)) wake_up_.Signal();
  }
  size_t Withdraw(ReadBatch& batch) override { return queue_.Withdraw(batch); }
  std::string Describe() const override {
    const int failure = failure_;
    if (failure == 0) return fmt::format("io_uring, direct, depth {}", FormatShape(shape_));
    return fmt::format("pread, direct, since io_uring failed ({})", std::strerror(failure));
  }
  uint64_t read_bytes() const override { return read_bytes_.load(std::memory_order_relaxed); }
  std::string Lost() const override {
    if (!abandoned_) return {};
    return fmt::format(
        "io_uring failed ({}) and the kernel did not finish the reads that it had begun, so their "
        "memory cannot be used any more; check the drive, then run again with --io buffered",
        std::strerror(failure_));
  }

 private:
  static constexpr uint64_t kWakeUp = UINT64_MAX;  // beside the indices of slots
  // Of answers that say "not now", one a millisecond.
  static constexpr size_t kMostRefusals = 5000;
  // How long reads of a ring that failed are waited for: longer than the kernel tries a drive.
  static constexpr auto kPatience = std::chrono::seconds(60);

  void Work() {
    Listen();
    Fill();
    // Ends when the queue is closed and nothing is left of it: Fill has just looked.
    while (listening_ || free_.size() < slots_.size()) {
      Enter();
      if (failure_ == 0) Reap();
      if (failure_ != 0) return TakeOver();
      Fill();
    }
  }

  io_uring_sqe* NextEntry() {
    io_uring_sqe* entry = ::io_uring_get_sqe(ring_.get());
    THIMBLE_CHECK(entry != nullptr);  // there are as many as slots, and one for the wake-up
    return entry;
  }

  void Listen() {
    io_uring_sqe* entry = NextEntry();
    wake_up_.PrepareWait(entry);
    ::io_uring_sqe_set_data64(entry, kWakeUp);
    listening_ = true;
  }

  // Hands pieces to the ring as far as its depth goes.
  void Fill() {
    while (!free_.empty()) {
      const auto piece = queue_.TryPop();
      if (!piece) return;
      const size_t slot = free_.back();
      free_.pop_back();
      slots_[slot] = *piece;
      Start(slot);
    }
  }

  void Start(size_t slot) {
    const ReadPiece& piece = slots_[slot];
    io_uring_sqe* entry = NextEntry();
    ::io_uring_prep_read(entry, files_[piece.file].descriptor(), piece.out + piece.done_bytes,
                         static_cast<unsigned>(piece.bytes - piece.done_bytes),
                         piece.offset + piece.done_bytes);
    ::io_uring_sqe_set_data64(entry, slot);
  }

  // Submits what is prepared and sleeps until something completes.
  void Enter() {
    const int result = ::io_uring_submit_and_wait(ring_.get(), 1);
    if (result >= 0 || result == -EINTR) {
      refusals_ = 0;
      return;
    }
    // Out of memory, or of room for completions: what is prepared stays so, and may pass later.
    const bool is_transient = result == -EAGAIN || result == -EBUSY || result == -ENOMEM;
    if (is_transient && ++refusals_ < kMostRefusals) {
      ::usleep(kRetryPauseMicroseconds);
    } else {
      failure_ = -result;
    }
  }

  void Reap() {
    io_uring_cqe* completion = nullptr;
    while (::io_uring_peek_cqe(ring_.get(), &completion) == 0) {
      const uint64_t tag = completion->user_data;
      const int answer = completion->res;
      ::io_uring_cqe_seen(ring_.get(), completion);
      if (tag != kWakeUp) {
        Complete(static_cast<size_t>(tag), answer);
      } else if (queue_.closed() || failure_ != 0) {
        listening_ = false;
      } else if (answer < 0 && answer != -EINTR && answer != -EAGAIN) {
        listening_ = false;
        failure_ = -answer;
      } else {
        Listen();
      }
    }
  }

  void Complete(size_t slot, int answer) {
    ReadPiece& piece = slots_[slot];
    if (answer > 0) {
      read_bytes_.fetch_add(static_cast<uint64_t>(answer), std::memory_order_relaxed);
    }
    const PieceState state = Advance(files_[piece.file], answer, &piece);
    if (state.over) {
      free_.push_back(slot);
      queue_.Finish(piece, state.error);
      return;
    }
    if (state.pause) ::usleep(kRetryPauseMicroseconds);
    if (failure_ == 0) {
      Start(slot);
    } else {
      free_.push_back(slot);
      blocking_.Serve(queue_, piece);
    }
  }

  void TakeOver() {
    std::vector<std::thread> helpers;
    try {
      while (helpers.size() + 1 < kMaxThreads) {
        helpers.push_back(StartThread("a reading thread", [this] { blocking_.ServeAll(queue_); }));
      }
    } catch (const Error&) {  // then this thread reads with those that there are
    }
    for (const uint64_t tag : ring_.Untaken()) {
      if (tag == kWakeUp) continue;
      free_.push_back(static_cast<size_t>(tag));
      blocking_.Serve(queue_, slots_[static_cast<size_t>(tag)]);
    }
    AwaitBegun();
    blocking_.ServeAll(queue_);
    for (std::thread& helper : helpers) helper.join();
  }

  // The kernel still writes to the memory of reads that it has begun, and needs no call to end
  // them.
  void AwaitBegun() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    Reap();
    while (free_.size() < slots_.size() && std::chrono::steady_clock::now() < deadline) {
      ::usleep(kRetryPauseMicroseconds);
      Reap();
    }
    std::vector<bool> is_free(slots_.size());
    for (const size_t slot : free_) is_free[slot] = true;
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      if (is_free[slot]) continue;
      abandoned_ = true;
      const ReadPiece& piece = slots_[slot];
      queue_.Finish(piece,
                    files_[piece.file].DescribeFailure(piece.offset + piece.done_bytes, failure_));
    }
  }

  const QueueShape shape_;
  std::vector<File> files_;
  ReadQueue queue_;
  WakeUp wake_up_;
  Ring ring_;
  std::atomic<uint64_t> read_bytes_ = 0;
  const PieceServer blocking_ = {files_, PreadPiece, read_bytes_};
  std::atomic<int> failure_ = 0;         // errno for which the ring was given up
  std::atomic<bool> abandoned_ = false;  // reads that were begun then did not end
  // Of the thread alone:
  std::vector<ReadPiece> slots_;  // what the kernel has
  std::vector<size_t> free_;      // slots that it has not
  bool listening_ = false;        // a read of the wake-up is in the kernel
  size_t refusals_ = 0;           // in a row

  std::thread thread_;
};

}  // namespace

std::unique_ptr<FileReader> TryNewUringReader(std::vector<File>* files, const QueueShape& shape) {
  auto reader = std::make_unique<UringReader>(shape);
  if (!reader->TryStart(files)) return nullptr;
  return reader;
}

}  // namespace thimble
