#include "model/kda.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/checked_math.h"
#include "base/error.h"

namespace thimble {
namespace {

constexpr float kL2Eps = 1e-6F;  // inside the root, on the sum (docs/MODEL.md)
constexpr size_t kMaxConvWidth = 8;
constexpr std::array kQkv = {TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue};

// Elements of states that a thread updates between two looks at the observer: a fifth of a second.
constexpr size_t kMostUpdated = size_t{1} << 30;

}  // namespace

KdaMixer::KdaMixer(const ModelConfig& config, size_t max_tokens, Carver& carver) : config_(config) {
  THIMBLE_CHECK(config.kda.conv_width >= 1 && config.kda.conv_width <= kMaxConvWidth);
  const size_t channels = config.kda.ProjectionSize();
  const auto take = [&](size_t width) {
    return Rows{carver.Take<float>(max_tokens * width), width};
  };
  for (Rows& rows : qkv_) rows = take(channels);
  decay_ = take(channels);
  beta_ = take(config.kda.num_heads);
  gate_ = take(channels);
  low_ = take(config.kda.head_dim);
  low_packed_ = take(PackedCols(config.kda.head_dim));
  out_ = take(channels);
  out_packed_ = take(PackedCols(channels));
  history_ = carver.Take<float>(3 * (config.kda.conv_width - 1) * channels);
}

void KdaMixer::Forward(const Executor& executor, size_t layer, const LayerParams& params,
                       const SweepTokens& tokens, const Rows& x, const Rows& y) {
  const size_t channels = config_.kda.ProjectionSize();
  Project(executor, layer, tokens.num_tokens, x);
  for (const Span& span : tokens.spans) Convolve(executor, layer, params, span);
  executor.ForTokens(tokens.num_tokens, 8 * channels,
                     [&](size_t token) { Activate(executor, params, token); });
  Recur(executor, layer, tokens);
  executor.ForTokens(tokens.num_tokens, 4 * channels, [&](size_t token) {
    const size_t dim = config_.kda.head_dim;
    for (size_t head = 0; head < config_.kda.num_heads; ++head) {
      float* o = out_[token] + head * dim;
      executor.kernels().rms_norm(o, params.out_norm, config_.rms_eps, dim, o);
    }
    executor.kernels().gate(gate_[token], channels, out_[token]);
  });
  executor.Pack(out_, channels, tokens.num_tokens, out_packed_);
  executor.Linear({layer, TensorRole::kOut}, config_.hidden_size, out_packed_, tokens.num_tokens,
                  y);
}

void KdaMixer::Project(const Executor& executor, size_t layer, size_t num_tokens, const Rows& x) {
  const size_t channels = config_.kda.ProjectionSize();
  const size_t dim = config_.kda.head_dim;
  const auto linear = [&](TensorRole role, size_t rows, const Rows& in, const Rows& out) {
    executor.Linear({layer, role}, rows, in, num_tokens, out);
  };
  const auto low_rank = [&](TensorRole first, TensorRole second, const Rows& out) {
    linear(first, dim, x, low_);
    executor.Pack(low_, dim, num_tokens, low_packed_);
    linear(second, channels, low_packed_, out);
  };
  for (size_t i = 0; i < kQkv.size(); ++i) linear(kQkv[i], channels, x, qkv_[i]);
  low_rank(TensorRole::kDecayA, TensorRole::kDecayB, decay_);
  linear(TensorRole::kBeta, config_.kda.num_heads, x, beta_);
  if (config_.kda.full_rank_gate) {
    linear(TensorRole::kGate, channels, x, gate_);
  } else {
    low_rank(TensorRole::kGateA, TensorRole::kGateB, gate_);
  }
}

// The convolution runs in place, last token first, since each token reads the raw rows before it.
void KdaMixer::Convolve(const Executor& executor, size_t layer, const LayerParams& params,
                        const Span& span) {
  const size_t width = config_.kda.conv_width;
  const size_t channels = config_.kda.ProjectionSize();
  const size_t history_floats = (width - 1) * channels;
  executor.pool().ParallelFor(kQkv.size(), 1, [&](const Range& range) {
    for (size_t i = range.first; i < range.last; ++i) {
      float* old = span.state->KdaHistory(layer) + i * history_floats;
      float* next = history_ + i * history_floats;
      // Row r of the sequence "history, then this span".
      const auto raw = [&](size_t r) {
        return r < width - 1 ? old + r * channels : qkv_[i][span.first_row + r - (width - 1)];
      };
      for (size_t r = 0; r + 1 < width; ++r) {
        std::copy_n(raw(span.num_tokens + r), channels, next + r * channels);
      }
      std::array<const float*, kMaxConvWidth> rows;
      std::array<const float*, kMaxConvWidth> taps;
      for (size_t tap = 0; tap < width; ++tap) taps[tap] = params.conv[i] + tap * channels;
      for (size_t token = span.num_tokens; token-- > 0;) {
        for (size_t tap = 0; tap < width; ++tap) rows[tap] = raw(token + tap);
        executor.kernels().short_conv(rows.data(), taps.data(), width, channels,
                                      qkv_[i][span.first_row + token]);
      }
      std::copy_n(next, history_floats, old);
    }
  });
}

void KdaMixer::Activate(const Executor& executor, const LayerParams& params, size_t token) {
  const Kernels& kernels = executor.kernels();
  const KdaConfig& kda = config_.kda;
  const float scale = 1.0F / std::sqrt(static_cast<float>(kda.head_dim));
  for (size_t head = 0; head < kda.num_heads; ++head) {
    const size_t at = head * kda.head_dim;
    float* q = qkv_[0][token] + at;
    float* k = qkv_[1][token] + at;
    float* z = decay_[token] + at;
    kernels.l2_normalize(q, kL2Eps, scale, kda.head_dim, q);
    kernels.l2_normalize(k, kL2Eps, 1.0F, kda.head_dim, k);
    if (kda.gate_lower_bound) {
      kernels.decay_bounded(z, params.dt_bias + at, params.alpha[head], *kda.gate_lower_bound,
                            kda.head_dim, z);
    } else {
      kernels.decay_softplus(z, params.dt_bias + at, params.alpha[head], kda.head_dim, z);
    }
  }
  kernels.sigmoid(beta_[token], kda.num_heads, beta_[token]);
}

// Heads are independent, tokens of a session follow one another.
void KdaMixer::Recur(const Executor& executor, size_t layer, const SweepTokens& tokens) {
  const KdaConfig& kda = config_.kda;
  const size_t dim = kda.head_dim;
  const size_t pairs = tokens.spans.size() * kda.num_heads;
  const size_t of_thread = CeilDiv(pairs, executor.pool().num_threads());
  const size_t piece = std::max<size_t>(1, kMostUpdated / (of_thread * dim * dim));
  executor.InPieces(tokens.num_tokens, piece, [&](size_t first, size_t count) {
    executor.ForTokens(pairs, dim * dim, [&](size_t pair) {
      const Span& span = tokens.spans[pair / kda.num_heads];
      const size_t head = pair % kda.num_heads;
      const size_t at = head * dim;
      float* state = span.state->KdaState(layer) + head * dim * dim;
      for (size_t i = first; i < std::min(first + count, span.num_tokens); ++i) {
        const size_t token = span.first_row + i;
        executor.kernels().kda_step({qkv_[0][token] + at, qkv_[1][token] + at, qkv_[2][token] + at,
                                     decay_[token] + at, beta_[token][head], dim, state,
                                     out_[token] + at});
      }
    });
  });
}

}  // namespace thimble
