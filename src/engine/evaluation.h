#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "engine/engine.h"

namespace thimble {

struct EvaluationResult {
  size_t num_tokens = 0;  // scored: all except the first
  double nats = 0;        // -sum ln p(token | what precedes it in its window)

  double PerplexityPerToken() const;
  double BitsPerByte(uint64_t num_bytes) const;
};

/// Measures how well the model predicts `tokens`. The text is cut into windows of `window` tokens.
/// Each window starts from an empty state and predicts the tokens one position further, so every
/// token except the first is scored exactly once. Requires an engine with all_logits and a context
/// of at least `window`. `on_progress(done, total)` is called after each chunk; if it returns
/// false, the evaluation ends with Error(kInterrupted).
EvaluationResult Evaluate(Engine& engine, std::span<const TokenId> tokens, size_t window,
                          const std::function<bool(size_t, size_t)>& on_progress);

}  // namespace thimble
