#include "base/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/start_thread.h"
#include "base/thread_placement.h"

namespace thimble {
namespace {

// Between two products of one layer the caller needs a few microseconds; a worker that slept would
// need tens to wake. A longer pause means that the caller waits for the drive.
constexpr int kSpins = 4000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns once `value` differs from `old`: spins for a moment, then sleeps.
void AwaitChange(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    Pause();
  }
  while (value.load(std::memory_order_acquire) == old) {
    value.wait(old, std::memory_order_acquire);
  }
}

}  // namespace

struct ThreadPool::Shared {
  std::atomic<uint32_t> generation{0};  // rises once for each ParallelFor, and once to stop
  std::atomic<uint32_t> running{0};     // workers that have not finished this generation
  bool stop = false;
  const RangeFunction* function = nullptr;
  size_t count = 0;
  size_t part_length = 0;
  std::vector<size_t> cpus;
  std::vector<std::thread> workers;
  std::optional<AffinityScope> caller;

  std::vector<size_t> CpuOf(size_t part) const {
    return cpus.empty() ? std::vector<size_t>() : std::vector<size_t>{cpus[part]};
  }

  void BindCaller() {
    if (cpus.empty() || (caller && caller->IsOfThisThread())) return;
    caller.reset();
    caller.emplace(CpuOf(0));
  }

  void RunPart(size_t part) const {
    const size_t first = std::min(count, part * part_length);
    const size_t last = std::min(count, first + part_length);
    if (first < last) (*function)({first, last, part});
  }

  void Work(size_t part) {
    const AffinityScope bound(CpuOf(part));
    uint32_t seen = 0;
    while (true) {
      AwaitChange(generation, seen);
      seen = generation.load(std::memory_order_acquire);
      if (stop) return;
      RunPart(part);
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) running.notify_one();
    }
  }

  void Publish() {
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
  }

  void Stop() {
    stop = true;
    Publish();
    for (std::thread& worker : workers) worker.join();
  }

  void AwaitWorkers() {
    for (uint32_t left = running.load(std::memory_order_acquire); left != 0;
         left = running.load(std::memory_order_acquire)) {
      AwaitChange(running, left);
    }
  }
};

ThreadPool::ThreadPool(size_t num_threads, std::vector<size_t> cpus)
    : shared_(std::make_unique<Shared>()) {
  THIMBLE_CHECK(num_threads >= 1);
  THIMBLE_CHECK(cpus.empty() || cpus.size() == num_threads);
  shared_->cpus = std::move(cpus);
  shared_->workers.reserve(num_threads - 1);
  try {
    for (size_t part = 1; part < num_threads; ++part) {
      shared_->workers.push_back(
          StartThread(fmt::format("compute thread {} of {}", part + 1, num_threads),
                      [shared = shared_.get(), part] { shared->Work(part); }));
    }
  } catch (...) {
    shared_->Stop();  // threads that nobody joins would end the process
    throw;
  }
}

ThreadPool::~ThreadPool() { shared_->Stop(); }

size_t ThreadPool::num_threads() const { return shared_->workers.size() + 1; }

void ThreadPool::ParallelFor(size_t count, size_t grain, RangeFunction function) {
  if (count == 0) return;
  shared_->BindCaller();
  if (shared_->workers.empty() || count <= grain) {
    function({0, count, 0});
    return;
  }
  shared_->function = &function;
  shared_->count = count;
  shared_->part_length = RoundUp(CeilDiv(count, num_threads()), grain);
  shared_->running.store(static_cast<uint32_t>(shared_->workers.size()), std::memory_order_relaxed);
  shared_->Publish();
  shared_->RunPart(0);
  shared_->AwaitWorkers();
}

}  // namespace thimble
