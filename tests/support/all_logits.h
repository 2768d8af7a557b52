#pragma once

#include <span>
#include <vector>

#include "engine/engine.h"

namespace thimble {

/// The logits of every position of a prompt, from an engine of its own that has just this context.
inline std::vector<float> AllLogits(const ModelDirectory& model, EngineOptions options,
                                    std::span<const TokenId> tokens) {
  options.all_logits = true;
  options.context = tokens.size();
  const auto engine = Engine::Open(model, options);
  Session session(*engine);
  std::vector<float> logits;
  session.Append(tokens, nullptr, [&](size_t, const float* rows, size_t num_rows) {
    logits.insert(logits.end(), rows, rows + num_rows * model.config.vocab_size);
  });
  return logits;
}

}  // namespace thimble
