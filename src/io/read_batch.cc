#include "io/read_batch.h"

#include <chrono>
#include <utility>

#include "base/error.h"

namespace thimble {

void ReadMonitor::Await(const std::function<bool()>& done) {
  if (done()) return;
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (true) {
    const uint64_t seen = num_finished_;
    lock.unlock();
    const bool enough = done();
    lock.lock();
    if (enough) break;
    finished_.wait(lock, [&] { return num_finished_ != seen; });
  }
  waited_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void ReadBatch::Expect(size_t count) {
  const std::lock_guard lock(monitor_.mutex_);
  outstanding_ += count;
}

void ReadBatch::Finish(const std::string& error) {
  const std::lock_guard lock(monitor_.mutex_);
  THIMBLE_CHECK(outstanding_ > 0);
  if (error_.empty()) error_ = error;
  // Under the lock: once it is released the owner may find the batch done and destroy it.
  if (--outstanding_ > 0) return;
  ++monitor_.num_finished_;
  monitor_.finished_.notify_one();
}

bool ReadBatch::done() const {
  const std::lock_guard lock(monitor_.mutex_);
  return outstanding_ == 0;
}

void ReadBatch::Await() {
  monitor_.Await([this] { return done(); });
  const std::string error = std::exchange(error_, {});
  if (!error.empty()) throw Error(ErrorCode::kRuntime, error);
}

}  // namespace thimble
