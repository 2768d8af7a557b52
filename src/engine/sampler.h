#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>

#include "base/token_id.h"
#include "kernels/kernels.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"

namespace thimble {

struct SamplingOptions {
  float temperature = 0;     // 0: the most likely token, always
  size_t top_k = 0;          // only the k most likely; 0: all
  float top_p = 1;           // only the most likely that together reach p (nucleus sampling)
  float min_p = 0;           // only those at least min_p times as likely as the best
  float repeat_penalty = 1;  // above 1: tokens that occurred before become less likely (CTRL,
                             // arXiv 1909.05858, section 4.1)
  uint64_t seed = 0;
};

/// Error(kUsage) naming an option that is out of range.
void CheckSamplingOptions(const SamplingOptions& options);

/// Picks tokens from logits. The same options and the same bits of logits give the same tokens. The
/// filters apply in the order penalty, temperature, top-k, top-p, min-p. Used by one
/// thread.
class Sampler {
 public:
  /// Checks the options. Scratch is charged to `budget`.
  Sampler(const SamplingOptions& options, size_t vocab_size, const Kernels& kernels,
          MemoryBudget& budget);

  /// Bytes of the scratch.
  static uint64_t ScratchBytes(size_t vocab_size);

  /// The next token. `history` are the tokens so far, for the penalty. Error(kRuntime) where a
  /// logit is not finite.
  TokenId Sample(std::span<const float> logits, std::span<const TokenId> history);

  /// Where the random numbers stand, as text, and back to there. Error(kUsage) where `state` is
  /// none.
  std::string SaveRandom() const;
  void RestoreRandom(const std::string& state);

 private:
  void Penalise(std::span<const float> logits, std::span<const TokenId> history);
  size_t KeepLikely();
  size_t CutTail(size_t count, double mass, float least) const;
  TokenId Draw(size_t count);

  const SamplingOptions options_;
  const size_t vocab_size_;
  const Kernels& kernels_;
  std::mt19937_64 random_;
  Buffer buffer_;
  float* probabilities_ = nullptr;  // [vocab_size], by token
  TokenId* candidates_ = nullptr;   // [vocab_size], those kept first
};

}  // namespace thimble
