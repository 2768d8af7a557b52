#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace thimble {

/// Where one thread waits for reads to finish, whichever comes first. Owned by the consumer of the
/// data; outlives its batches. Finish is called from any thread, Await from the consumer's alone.
class ReadMonitor {
 public:
  /// Returns once `done()` holds; it is asked again after each batch that finishes. The time spent
  /// here is the time the cores waited for the drive.
  void Await(const std::function<bool()>& done);
  double waited_seconds() const { return waited_seconds_; }

 private:
  friend class ReadBatch;
  std::mutex mutex_;
  std::condition_variable finished_;
  uint64_t num_finished_ = 0;  // batches, guarded by mutex_
  double waited_seconds_ = 0;
};

/// Reads that count as one: done when the last is. Owned by the consumer, who keeps it (and the
/// memory that the reads fill) until done(). Reusable after that.
class ReadBatch {
 public:
  explicit ReadBatch(ReadMonitor& monitor) : monitor_(monitor) {}
  ReadBatch(const ReadBatch&) = delete;
  ReadBatch& operator=(const ReadBatch&) = delete;

  /// Announces `count` more reads. Called by the consumer, before they are submitted.
  void Expect(size_t count);
  /// One read has ended; `error` says what went wrong, and is empty where nothing did. Any thread.
  void Finish(const std::string& error);

  bool done() const;
  /// Waits until done; then throws Error(kRuntime) with the first failure since the last call.
  void Await();

 private:
  ReadMonitor& monitor_;
  size_t outstanding_ = 0;  // guarded by the monitor's mutex, like error_
  std::string error_;
};

}  // namespace thimble
