#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "engine/engine.h"

namespace thimble {

struct EvaluationResult {
  size_t num_tokens = 0;  // scored: all but the first
  double nats = 0;        // -sum ln p(token | what precedes it in its window)

  double PerplexityPerToken() const;
  double BitsPerByte(uint64_t num_bytes) const;
};

/// How well the model predicts `tokens`. The text is cut into windows of `window` tokens; each is
/// read from an empty state and predicts the tokens one further on, so that every token but the
/// first is scored exactly once. Needs an engine with all_logits and a context of at least
/// `window`. `on_progress(done, total)` is called after each chunk, and stops the evaluation by
/// returning false: Error(kInterrupted).
EvaluationResult Evaluate(Engine& engine, std::span<const TokenId> tokens, size_t window,
                          const std::function<bool(size_t, size_t)>& on_progress);

}  // namespace thimble
