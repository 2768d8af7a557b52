#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"

namespace thimble {

/// Steps of Kimi Delta Attention over the states of as many heads of Kimi K3 (128 x 128 floats
/// each) as fill about `state_bytes`. Charged to `budget`.
class KdaTrial {
 public:
  KdaTrial(uint64_t state_bytes, MemoryBudget& budget);

  /// Error(kRuntime) where a step differs from the recurrence in double precision by more than
  /// float32's rounding explains.
  void Verify();
  /// Bytes of states, read and written, that all threads step over in a second; each thread has
  /// heads of its own, of which there must be one for each at least.
  double BytesPerSecond(ThreadPool& pool, std::chrono::milliseconds time);
  std::span<const std::byte> memory() const { return {buffer_.data(), buffer_.bytes()}; }

 private:
  static constexpr size_t kDim = 128;
  static constexpr size_t kHeadFloats = kDim * kDim;

  float* State(size_t head) {
    return reinterpret_cast<float*>(buffer_.data()) + head * kHeadFloats;
  }
  void Step(size_t head, float* out);

  const Kernels& kernels_ = BestKernels();
  const size_t num_heads_;
  std::vector<float> inputs_;  // q, k, v, decay: [kDim] each
  Buffer buffer_;
};

/// Latent attention of 24 heads of Kimi K3 (512 + 64 floats a position), a quarter of all, over
/// caches of 1024 positions, as many as fill about `cache_bytes`. Charged to `budget`.
class MlaTrial {
 public:
  MlaTrial(uint64_t cache_bytes, MemoryBudget& budget);

  /// Error(kRuntime) as above, for a softmax in double precision.
  void Verify();
  /// Operations of all threads in a second, two for each multiply-add of scores and contexts.
  double FlopsPerSecond(ThreadPool& pool, std::chrono::milliseconds time);

 private:
  static constexpr size_t kHeads = 24;
  static constexpr size_t kLatent = 512;
  static constexpr size_t kExtra = 64;
  static constexpr size_t kWidth = kLatent + kExtra;
  static constexpr size_t kPositions = 1024;
  static constexpr size_t kCacheFloats = kPositions * kWidth;

  const float* Cache(size_t index) const {
    return reinterpret_cast<const float*>(buffer_.data()) + index * kCacheFloats;
  }
  using Contexts = std::array<float, kHeads * kLatent>;
  void Attend(size_t index, Contexts& contexts) const;
  void VerifyHead(size_t head, const float* cache, const float* context) const;

  const Kernels& kernels_ = BestKernels();
  const size_t num_caches_;
  std::vector<float> queries_;  // [kHeads, kWidth]
  Buffer buffer_;
};

}  // namespace thimble
