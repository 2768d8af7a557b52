#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/block_reader.h"
#include "io/file.h"

/// Readers that keep the contract of BlockReader in its least convenient ways. All but the first
/// wrap another reader, and can be stacked.
namespace thimble {

/// Completes every read inside Submit: the earliest that a completion can come.
class InstantReader final : public BlockReader {
 public:
  explicit InstantReader(const std::vector<std::filesystem::path>& paths) {
    for (const auto& path : paths) files_.push_back(File::Open(path));
  }

  void Submit(std::span<const ReadRequest> requests, ReadPriority, ReadBatch& batch) override {
    batch.Expect(requests.size());
    for (const ReadRequest& request : requests) batch.Finish(Read(request));
  }

 private:
  std::string Read(const ReadRequest& request) const {
    try {
      files_[request.file].ReadAt(request.offset, request.needed_bytes, request.out);
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  }

  std::vector<File> files_;
};

/// Completes reads one by one, from a thread of its own, in random order and after random pauses;
/// each takes `read_time` longer than that.
class ShuffledReader final : public BlockReader {
 public:
  ShuffledReader(BlockReader& inner, uint64_t seed, std::chrono::microseconds read_time = {})
      : inner_(inner), random_(seed), read_time_(read_time), thread_([this] { Work(); }) {}
  ~ShuffledReader() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    arrived_.notify_one();
    thread_.join();
  }

  void Submit(std::span<const ReadRequest> requests, ReadPriority priority,
              ReadBatch& batch) override {
    batch.Expect(requests.size());
    {
      const std::lock_guard lock(mutex_);
      for (const ReadRequest& request : requests) jobs_.push_back({request, priority, &batch});
    }
    arrived_.notify_one();
  }
  size_t Withdraw(ReadBatch& batch) override {
    size_t count = 0;
    {
      const std::lock_guard lock(mutex_);
      count = std::erase_if(jobs_, [&](const Job& job) {
        return job.batch == &batch && job.priority == ReadPriority::kLikely;
      });
    }
    for (size_t i = 0; i < count; ++i) batch.Finish({});
    return count;
  }

 private:
  struct Job {
    ReadRequest request;
    ReadPriority priority;
    ReadBatch* batch;
  };

  std::optional<Job> Take() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return std::nullopt;
    std::swap(jobs_[random_() % jobs_.size()], jobs_.back());
    const Job job = jobs_.back();
    jobs_.pop_back();
    return job;
  }

  void Work() {
    ReadMonitor monitor;
    while (const auto job = Take()) {
      random_.discard(random_() % 1000);  // a pause; yielding to a busy machine takes far longer
      if (read_time_.count() > 0) std::this_thread::sleep_for(read_time_);
      ReadBatch batch(monitor);
      std::string failure;
      inner_.Submit({&job->request, 1}, job->priority, batch);
      try {
        batch.Await();
      } catch (const Error& error) {
        failure = error.what();
      }
      job->batch->Finish(failure);
    }
  }

  BlockReader& inner_;
  std::mt19937_64 random_;  // of the thread
  const std::chrono::microseconds read_time_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Job> jobs_;  // guarded by mutex_, like stop_
  bool stop_ = false;
  std::thread thread_;
};

/// Fails reads when told to, and leaves 0x5a in their memory. May be told from any thread.
class FailingReader final : public BlockReader {
 public:
  FailingReader(BlockReader& inner, std::vector<std::filesystem::path> paths)
      : inner_(inner), paths_(std::move(paths)) {}

  /// The read after `count` more fails; those after it do not.
  void FailAfter(size_t count) {
    const std::lock_guard lock(mutex_);
    reads_left_ = count;
  }
  void FailAll(bool fail) {
    const std::lock_guard lock(mutex_);
    fail_all_ = fail;
  }
  /// How many reads have failed.
  size_t num_failed() const {
    const std::lock_guard lock(mutex_);
    return num_failed_;
  }

  void Submit(std::span<const ReadRequest> requests, ReadPriority priority,
              ReadBatch& batch) override {
    for (const ReadRequest& request : requests) {
      if (!NextFails()) {
        inner_.Submit({&request, 1}, priority, batch);
        continue;
      }
      std::memset(request.out, 0x5a, request.bytes);
      batch.Expect(1);
      batch.Finish("reading " + paths_[request.file].string() + " at byte " +
                   std::to_string(request.offset) + " failed: injected");
    }
  }
  size_t Withdraw(ReadBatch& batch) override { return inner_.Withdraw(batch); }

 private:
  bool NextFails() {
    const std::lock_guard lock(mutex_);
    const bool due = reads_left_ == 0;
    if (due) {
      reads_left_.reset();
    } else if (reads_left_) {
      --*reads_left_;
    }
    if (due || fail_all_) ++num_failed_;
    return due || fail_all_;
  }

  BlockReader& inner_;
  std::vector<std::filesystem::path> paths_;
  mutable std::mutex mutex_;  // guards what follows
  std::optional<size_t> reads_left_;
  bool fail_all_ = false;
  size_t num_failed_ = 0;
};

/// Fills the memory of each read with 0xa5 before the data come: whoever still looks at what was
/// there sees it, and whoever looks before the data are there.
class DirtyReader final : public BlockReader {
 public:
  explicit DirtyReader(BlockReader& inner) : inner_(inner) {}

  void Submit(std::span<const ReadRequest> requests, ReadPriority priority,
              ReadBatch& batch) override {
    for (const ReadRequest& request : requests) std::memset(request.out, 0xa5, request.bytes);
    inner_.Submit(requests, priority, batch);
  }
  size_t Withdraw(ReadBatch& batch) override { return inner_.Withdraw(batch); }

 private:
  BlockReader& inner_;
};

/// Counts the reads of each range.
class CountingReader final : public BlockReader {
 public:
  explicit CountingReader(BlockReader& inner) : inner_(inner) {}

  void Submit(std::span<const ReadRequest> requests, ReadPriority priority,
              ReadBatch& batch) override {
    for (const ReadRequest& request : requests) ++counts_[KeyOf(request)];
    num_reads_ += requests.size();
    inner_.Submit(requests, priority, batch);
  }
  size_t Withdraw(ReadBatch& batch) override { return inner_.Withdraw(batch); }

  size_t num_reads() const { return num_reads_; }
  size_t CountOf(const ReadRequest& request) const {
    const auto found = counts_.find(KeyOf(request));
    return found == counts_.end() ? 0 : found->second;
  }
  void Clear() { counts_.clear(); }

 private:
  // Reads of neighbours may begin at the same place, but end apart.
  using Key = std::tuple<uint32_t, uint64_t, size_t>;
  static Key KeyOf(const ReadRequest& request) {
    return {request.file, request.offset, request.needed_bytes};
  }

  BlockReader& inner_;
  std::map<Key, size_t> counts_;
  size_t num_reads_ = 0;
};

}  // namespace thimble
