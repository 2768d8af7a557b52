#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace thimble {

/// One thread's share of an index range.
struct Range {
  size_t first;
  size_t last;  // exclusive
  size_t part;  // below num_threads(), different for parts that run at the same time: for scratch
};

/// Non-owning reference to a callable `void(Range)`; lives for one call.
class RangeFunction {
 public:
  template <typename F>
  RangeFunction(const F& function)  // NOLINT(google-explicit-constructor): a call-site convenience
      : object_(&function), call_([](const void* object, const Range& range) {
          (*static_cast<const F*>(object))(range);
        }) {}
  void operator()(const Range& range) const { call_(object_, range); }

 private:
  const void* object_;
  void (*call_)(const void*, const Range&);
};

/// A fixed set of threads that split index ranges. The split is static: which thread takes which
/// part depends only on the sizes, and never changes a result, since parts share no output.
///
/// ParallelFor may be called from one thread at a time (the owner's); `function` must not throw
/// and must not call ParallelFor itself. Workers spin for a moment between calls, then sleep.
class ThreadPool {
 public:
  /// Starts num_threads - 1 workers; the caller's thread is the last. num_threads >= 1. `cpus` has
  /// a CPU for each thread, the caller's first, which is bound from its first ParallelFor until
  /// another thread calls or the pool ends; empty: none is bound. Error(kRuntime) where the system
  /// refuses a thread.
  explicit ThreadPool(size_t num_threads, std::vector<size_t> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t num_threads() const;

  /// Calls `function` over a partition of [0, count) and returns when all is done. Each part but
  /// the last is a multiple of `grain` (>= 1) long, so a count of at most `grain` runs on one
  /// thread.
  void ParallelFor(size_t count, size_t grain, RangeFunction function);

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace thimble
