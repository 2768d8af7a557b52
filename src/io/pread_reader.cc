#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "io/block_reader.h"
#include "io/file.h"

namespace thimble {
namespace {

class PreadReader : public BlockReader {
 public:
  PreadReader(const std::vector<std::filesystem::path>& paths, size_t num_threads) {
    files_.reserve(paths.size());
    for (const auto& path : paths) files_.push_back(File::Open(path));
    for (size_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
  }

  ~PreadReader() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    arrived_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(std::span<const ReadRequest> requests, ReadPriority priority,
              ReadBatch& batch) override {
    batch.Expect(requests.size());
    {
      const std::lock_guard lock(mutex_);
      auto& queue = queues_[static_cast<size_t>(priority)];
      for (const ReadRequest& request : requests) queue.push_back({request, &batch});
    }
    if (requests.size() == 1) {
      arrived_.notify_one();
    } else {
      arrived_.notify_all();
    }
  }

 private:
  struct Job {
    ReadRequest request;
    ReadBatch* batch;
  };

  // The next job, or nothing when the reader stops and the queues are empty.
  std::optional<Job> Take() {
    std::unique_lock lock(mutex_);
    while (true) {
      for (auto& queue : queues_) {
        if (queue.empty()) continue;
        const Job job = queue.front();
        queue.pop_front();
        return job;
      }
      if (stop_) return std::nullopt;
      arrived_.wait(lock);
    }
  }

  void Work() {
    while (const auto job = Take()) {
      std::string error;
      try {
        Read(job->request);
      } catch (const Error& failure) {
        error = failure.what();
      }
      job->batch->Finish(error);
    }
  }

  void Read(const ReadRequest& request) const {
    const File& file = files_[request.file];
    const uint64_t end = std::min(request.offset + request.bytes, file.size());
    const size_t there = end > request.offset ? static_cast<size_t>(end - request.offset) : 0;
    file.ReadAt(request.offset, std::max(there, request.needed_bytes), request.out);
  }

  std::vector<File> files_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::array<std::deque<Job>, 2> queues_;  // by priority; guarded by mutex_, like stop_
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockReader> OpenPreadReader(const std::vector<std::filesystem::path>& files,
                                             size_t num_threads) {
  return std::make_unique<PreadReader>(files, num_threads);
}

}  // namespace thimble
