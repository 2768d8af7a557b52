#include "model/residuals.h"

#include <algorithm>
#include <cmath>

namespace thimble {
Residuals::Residuals(const ModelConfig& config, size_t max_tokens, Carver& carver)
    : hidden_(config.hidden_size),
      block_(config.attn_res_block),
      eps_(config.rms_eps),
      block_floats_(max_tokens * config.hidden_size) {
  const size_t candidates = config.NumResidualBlocks() + 1;
  storage_ = carver.Take<float>(candidates * block_floats_);
  scores_ = {carver.Take<float>(max_tokens * candidates), candidates};
  current_ = {storage_, hidden_};
}

void Residuals::Begin(size_t num_tokens) {
  num_tokens_ = num_tokens;
  num_blocks_ = 0;
  restarted_ = false;
  current_.data = storage_;
}

void Residuals::Mix(const Executor& executor, const float* weight, size_t token,
                    float* mixed) const {
  const Kernels& kernels = executor.kernels();
  const size_t count = num_blocks_ + (restarted_ ? 0 : 1);
  if (num_blocks_ == 0) {
    std::copy_n(current_[token], hidden_, mixed);
    return;
  }
  float* scores = scores_[token];
  const auto candidate = [&](size_t i) { return storage_ + i * block_floats_ + token * hidden_; };
  for (size_t i = 0; i < count; ++i) {
    const float mean = kernels.sum_of_squares(candidate(i), hidden_) / static_cast<float>(hidden_);
    scores[i] = kernels.dot(candidate(i), weight, hidden_) / std::sqrt(mean + eps_);
  }
  kernels.softmax(scores, count);
  kernels.scale(scores[0], candidate(0), hidden_, mixed);
  for (size_t i = 1; i < count; ++i) kernels.axpy(scores[i], candidate(i), hidden_, mixed);
}

void Residuals::StartLayer(size_t layer) {
  if (block_ == 0 || layer % block_ != 0) return;
  ++num_blocks_;
  current_.data = storage_ + num_blocks_ * block_floats_;
  restarted_ = true;
}

void Residuals::Add(const Executor& executor, const Rows& x) {
  executor.ForTokens(num_tokens_, hidden_, [&](size_t token) {
    if (restarted_) {
      std::copy_n(x[token], hidden_, current_[token]);
    } else {
      executor.kernels().add(x[token], hidden_, current_[token]);
    }
  });
  restarted_ = false;
}

}  // namespace thimble
