#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/job.h"
#include "text/tokenizer.h"

namespace thimble::server {

/// A backend that makes what a script says, each job on a thread of its own.
class ScriptedBackend : public Backend {
 public:
  using Script = std::function<void(Job&)>;
  explicit ScriptedBackend(Script script) : script_(std::move(script)) {}
  ~ScriptedBackend() override {
    for (std::thread& thread : threads_) thread.join();
  }

  bool Submit(std::shared_ptr<Job> job) override {
    const std::lock_guard lock(mutex_);
    if (full) return false;
    jobs_.push_back(job);
    threads_.emplace_back([this, job] { script_(*job); });
    return true;
  }
  size_t context() const override { return 2048; }
  std::vector<std::pair<std::string, double>> Metrics() const override {
    return {{"thimble_requests_total", 3}};
  }
  std::shared_ptr<Job> job(size_t i) {
    const std::lock_guard lock(mutex_);
    return i < jobs_.size() ? jobs_[i] : nullptr;
  }

  std::atomic<bool> full = false;

 private:
  Script script_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Job>> jobs_;
  std::vector<std::thread> threads_;
};

/// Waits, at most a while, for `condition`.
template <typename F>
bool WaitFor(const F& condition, int milliseconds = 1000) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// What a job has made, once it has made something or ended; at most a while later.
inline Job::Update Await(Job& job, int milliseconds = 1000) {
  Job::Update update;
  const auto took = [&] {
    update = job.Take();
    return update.ended || !update.tokens.empty();
  };
  WaitFor(took, milliseconds);
  return update;
}

}  // namespace thimble::server
