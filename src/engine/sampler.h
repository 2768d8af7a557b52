#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/token_id.h"
#include "kernels/kernels.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"

namespace thimble {

/// Added to the logit of one token.
struct LogitBias {
  TokenId id = 0;
  float bias = 0;
};

struct SamplingOptions {
  float temperature = 0;     // 0: the most likely token, always
  size_t top_k = 0;          // only the k most likely; 0: all
  float top_p = 1;           // only the most likely that together reach p (nucleus sampling)
  float min_p = 0;           // only those at least min_p times as likely as the best
  float repeat_penalty = 1;  // above 1: tokens of prompt and answer become less likely (CTRL,
                             // arXiv 1909.05858, section 4.1)
  // From -2 to 2, as OpenAI defines them: subtracted from the logits of the answer's tokens, for
  // each occurrence, and once for any number of them.
  float frequency_penalty = 0;
  float presence_penalty = 0;
  std::vector<LogitBias> logit_bias;  // each from -100 to 100; ids are below the vocabulary's size
  uint64_t seed = 0;
};

/// Error(kUsage) naming an option that is out of range.
void CheckSamplingOptions(const SamplingOptions& options);

/// Picks tokens from logits. The same options and the same bits of logits give the same tokens. The
/// steps are, in this order: repeat penalty, frequency and presence penalties, bias, temperature,
/// top-k, top-p, min-p. Allocates nothing after its construction. Used by one thread.
class Sampler {
 public:
  /// Error(kUsage) as CheckSamplingOptions, and for a bias of an id outside the vocabulary. Scratch
  /// is charged to `budget`.
  Sampler(const SamplingOptions& options, size_t vocab_size, const Kernels& kernels,
          MemoryBudget& budget);

  /// Bytes of the scratch.
  static uint64_t ScratchBytes(size_t vocab_size);

  /// The next token. `history` holds the tokens so far, for the penalties; its first `num_prompt`
  /// are the prompt, which the frequency and presence penalties do not count. Error(kRuntime) where
  /// a logit is not finite.
  TokenId Sample(std::span<const float> logits, std::span<const TokenId> history,
                 size_t num_prompt);

  /// Where the random numbers stand, as text, and back to there. Error(kUsage) where `state` is
  /// none.
  std::string SaveRandom() const;
  void RestoreRandom(const std::string& state);

 private:
  void Adjust(std::span<const float> logits, std::span<const TokenId> history, size_t num_prompt);
  void PenaliseAnswer(std::span<const TokenId> answer);
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
