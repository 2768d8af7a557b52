#include "engine/evaluation.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/log_sum.h"

namespace thimble {
namespace {

class WindowObserver : public Session::Observer {
 public:
  WindowObserver(size_t before, size_t total, const std::function<bool(size_t, size_t)>& report)
      : before_(before), total_(total), report_(report) {}
  bool OnLayer(size_t layer) override {
    // Asking once a sweep is often enough.
    return layer != 0 || report_(before_ + done_, total_);
  }
  void OnProgress(size_t done, size_t) override { done_ = done; }

 private:
  size_t before_;
  size_t total_;
  size_t done_ = 0;
  const std::function<bool(size_t, size_t)>& report_;
};

}  // namespace

double EvaluationResult::PerplexityPerToken() const {
  return std::exp(nats / static_cast<double>(num_tokens));
}

double EvaluationResult::BitsPerByte(uint64_t num_bytes) const {
  return nats / std::log(2.0) / static_cast<double>(num_bytes);
}

EvaluationResult Evaluate(Engine& engine, std::span<const TokenId> tokens, size_t window,
                          const std::function<bool(size_t, size_t)>& on_progress) {
  if (tokens.size() < 2) {
    throw Error(ErrorCode::kUsage, "the text has " + std::to_string(tokens.size()) +
                                       " tokens, expected at least 2: one to read, one to predict");
  }
  THIMBLE_CHECK(window > 0);
  const size_t vocab_size = engine.config().vocab_size;
  EvaluationResult result;
  result.num_tokens = tokens.size() - 1;
  for (size_t first = 0; first < result.num_tokens; first += window) {
    const size_t count = std::min(window, result.num_tokens - first);
    Session session(engine);
    WindowObserver observer(first, result.num_tokens, on_progress);
    session.Append(tokens.subspan(first, count), &observer,
                   [&](size_t position, const float* rows, size_t num_rows) {
                     for (size_t row = 0; row < num_rows; ++row) {
                       const std::span logits(rows + row * vocab_size, vocab_size);
                       const TokenId next = tokens[first + position + row + 1];
                       result.nats += LogSumExp(logits) - static_cast<double>(logits[next]);
                     }
                   });
  }
  return result;
}

}  // namespace thimble
