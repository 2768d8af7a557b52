#pragma once

#include <algorithm>
#include <cstddef>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "model/sweep.h"
#include "model/weights.h"

namespace thimble {

/// Rows of activations: `num_tokens` rows of `stride` floats.
struct Rows {
  float* data = nullptr;
  size_t stride = 0;

  float* operator[](size_t token) const { return data + token * stride; }
};

/// The tools of the forward pass: kernels, threads and trunk. Borrows all three.
class Executor {
 public:
  Executor(const Kernels& kernels, ThreadPool& pool, LayerSource& source)
      : kernels_(kernels), pool_(pool), source_(source) {}

  const Kernels& kernels() const { return kernels_; }
  ThreadPool& pool() const { return pool_; }
  LayerSource& source() const { return source_; }

  /// Sets who may stop the work from now on; null: nobody.
  void Watch(SweepObserver* observer) { observer_ = observer; }

  /// Error(kInterrupted) if the observer says stop. Called between pieces of work that take up to a
  /// few tenths of a second.
  void ThrowIfStopped() const;

  /// Calls function(first, count) for consecutive pieces of [0, total), of at most `piece` each,
  /// and asks the observer between them.
  template <typename F>
  void InPieces(size_t total, size_t piece, const F& function) const {
    for (size_t first = 0; first < total; first += piece) {
      if (first > 0) ThrowIfStopped();
      function(first, std::min(piece, total - first));
    }
  }

  /// y[t] = W x[t] for `num_tokens` rows, with a matrix in memory. `x` is packed (PackedCols). This
  /// and the next two ask the observer if their work is long.
  void MatMul(const WeightMatrix& w, const Rows& x, size_t num_tokens, const Rows& y) const;

  /// The same with a matrix of the trunk of `rows` rows, which streams through by blocks.
  void Linear(const TensorAddress& tensor, size_t rows, const Rows& x, size_t num_tokens,
              const Rows& y) const;

  /// Calls function(token) for each of `num_tokens`, on all threads. `cost` is about how many
  /// floats one token touches: little work stays on one thread.
  template <typename F>
  void ForTokens(size_t num_tokens, size_t cost, const F& function) const {
    const size_t grain = cost >= kMinFloatsPerThread ? 1 : kMinFloatsPerThread / (cost + 1) + 1;
    const size_t piece = (kMostFloats / (cost + 1) + 1) * grain * pool_.num_threads();
    InPieces(num_tokens, piece, [&](size_t first, size_t count) {
      pool_.ParallelFor(count, grain, [&](const Range& range) {
        for (size_t i = range.first; i < range.last; ++i) function(first + i);
      });
    });
  }

  /// Packs rows of `cols` floats for MatMul.
  void Pack(const Rows& x, size_t cols, size_t num_tokens, const Rows& packed) const;

 private:
  // Waking a worker costs microseconds, in which one core passes over this many floats.
  static constexpr size_t kMinFloatsPerThread = 16384;
  // A thread passes over so many, ten or twenty operations each, in a few tenths of a second.
  static constexpr size_t kMostFloats = size_t{1} << 28;

  const Kernels& kernels_;
  ThreadPool& pool_;
  LayerSource& source_;
  SweepObserver* observer_ = nullptr;
};

}  // namespace thimble
