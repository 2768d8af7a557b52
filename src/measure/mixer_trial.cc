#include "measure/mixer_trial.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "base/error.h"
#include "measure/measurement.h"
#include "measure/piece_rate.h"

namespace thimble {
namespace {

constexpr double kEpsilon = 0x1p-24;  // the relative error of one rounding to float32
constexpr float kBeta = 0.7F;
// 1 / sqrt(width), so that scores are of the order of 1.
constexpr float kScoreScale = 1.0F / 24;

void FillUniformly(std::span<float> out, float low, float high) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(low, high);
  for (float& value : out) value = uniform(random);
}

// Repeats the first `count` floats to the end of the buffer.
void Repeat(Buffer& buffer, size_t count) {
  const std::span<float> floats(reinterpret_cast<float*>(buffer.data()),
                                buffer.bytes() / sizeof(float));
  for (size_t i = count; i < floats.size(); i += count) {
    std::copy_n(floats.begin(), count, floats.begin() + static_cast<ptrdiff_t>(i));
  }
}

std::string Element(size_t index, const char* of) {
  return "element " + std::to_string(index) + " of " + of;
}

}  // namespace

KdaTrial::KdaTrial(uint64_t state_bytes, MemoryBudget& budget)
    : num_heads_(std::max<size_t>(1, state_bytes / (kHeadFloats * sizeof(float)))),
      inputs_(4 * kDim),
      buffer_(budget, "states to measure by", num_heads_ * kHeadFloats * sizeof(float)) {
  const std::span<float> inputs = inputs_;
  // Keys and queries of length one at most: the states keep their size however often they step.
  const float most = 1 / std::sqrt(static_cast<float>(kDim));
  FillUniformly(inputs.first(2 * kDim), -most, most);
  FillUniformly(inputs.subspan(2 * kDim, kDim), -1, 1);
  FillUniformly(inputs.subspan(3 * kDim), 0.9F, 0.999F);
  FillUniformly({State(0), kHeadFloats}, -1, 1);
  Repeat(buffer_, kHeadFloats);
}

void KdaTrial::Step(size_t head, float* out) {
  const float* in = inputs_.data();
  kernels_.kda_step({.q = in,
                     .k = in + kDim,
                     .v = in + 2 * kDim,
                     .decay = in + 3 * kDim,
                     .beta = kBeta,
                     .head_dim = kDim,
                     .state = State(head),
                     .o = out});
}

void KdaTrial::Verify() {
  const std::vector<float> before(State(0), State(0) + kHeadFloats);
  std::array<float, kDim> out;
  Step(0, out.data());
  const float* q = inputs_.data();
  const float* k = q + kDim;
  const float* v = k + kDim;
  const float* decay = v + kDim;
  for (size_t col = 0; col < kDim; ++col) {
    double seen = 0;
    double seen_norm = 0;
    for (size_t key = 0; key < kDim; ++key) {
      const double product = double{decay[key]} * before[key * kDim + col] * k[key];
      seen += product;
      seen_norm += std::abs(product);
    }
    const double change = kBeta * (v[col] - seen);
    double sum = 0;
    double norm = 0;
    for (size_t key = 0; key < kDim; ++key) {
      const double s = double{decay[key]} * before[key * kDim + col] + k[key] * change;
      sum += s * q[key];
      norm += std::abs(q[key]) * (std::abs(s) + std::abs(k[key]) * (seen_norm + 1));
      const double found = State(0)[key * kDim + col];
      const double bound = (kDim + 4) * kEpsilon * (std::abs(s) + seen_norm + 1);
      if (!(std::abs(found - s) <= bound)) {
        FailCheck(Element(key * kDim + col, "KDA's state"), s, found);
      }
    }
    // Two sums of kDim terms; the first one's error reaches each term of the second.
    if (!(std::abs(out[col] - sum) <= 2 * (kDim + 4) * kEpsilon * norm)) {
      FailCheck(Element(col, "KDA's output"), sum, out[col]);
    }
  }
}

double KdaTrial::BytesPerSecond(ThreadPool& pool, std::chrono::milliseconds time) {
  constexpr size_t kPieceHeads = 4;
  const size_t share = num_heads_ / pool.num_threads();
  THIMBLE_CHECK(share >= 1);
  const double pieces = PiecesPerSecond(pool, time, [&](size_t thread, size_t count) {
    std::array<float, kDim> out;
    for (size_t i = 0; i < kPieceHeads; ++i) {
      Step(thread * share + (count * kPieceHeads + i) % share, out.data());
    }
  });
  return pieces * 2 * kPieceHeads * kHeadFloats * sizeof(float);
}

MlaTrial::MlaTrial(uint64_t cache_bytes, MemoryBudget& budget)
    : num_caches_(std::max<size_t>(1, cache_bytes / (kCacheFloats * sizeof(float)))),
      queries_(kHeads * kWidth),
      buffer_(budget, "latents to measure by", num_caches_ * kCacheFloats * sizeof(float)) {
  FillUniformly(queries_, -2, 2);
  FillUniformly({reinterpret_cast<float*>(buffer_.data()), kCacheFloats}, -1, 1);
  Repeat(buffer_, kCacheFloats);
}

void MlaTrial::Attend(size_t index, Contexts& contexts) const {
  kernels_.mla_attend({.q = queries_.data(),
                       .num_tokens = 1,
                       .num_heads = kHeads,
                       .cache = Cache(index),
                       .num_positions = kPositions,
                       .shape = {LatentFormat::kF32, kLatent, kExtra},
                       .scale = kScoreScale,
                       .context = contexts.data(),
                       .decoded = nullptr});
}

void MlaTrial::Verify() {
  Contexts contexts;
  Attend(num_caches_ - 1, contexts);
  for (size_t head = 0; head < kHeads; ++head) {
    VerifyHead(head, Cache(num_caches_ - 1), contexts.data() + head * kLatent);
  }
}

void MlaTrial::VerifyHead(size_t head, const float* cache, const float* context) const {
  const float* query = queries_.data() + head * kWidth;
  std::vector<double> weights(kPositions);
  double total = 0;
  double score_norm = 0;
  for (size_t j = 0; j < kPositions; ++j) {
    double score = 0;
    double norm = 0;
    for (size_t i = 0; i < kWidth; ++i) {
      const double product = double{query[i]} * cache[j * kWidth + i];
      score += product;
      norm += std::abs(product);
    }
    weights[j] = std::exp(kScoreScale * score);
    total += weights[j];
    score_norm = std::max(score_norm, kScoreScale * norm);
  }
  for (size_t i = 0; i < kLatent; ++i) {
    double sum = 0;
    double norm = 0;
    for (size_t j = 0; j < kPositions; ++j) {
      const double term = weights[j] / total * cache[j * kWidth + i];
      sum += term;
      norm += std::abs(term);
    }
    // Each score is a sum of kWidth terms, whose error e^x passes on; then two sums over positions.
    const double roundings = kWidth * score_norm + 16 + 2 * kPositions;
    if (!(std::abs(context[i] - sum) <= 2 * roundings * kEpsilon * norm)) {
      FailCheck(Element(head * kLatent + i, "the attention's contexts"), sum, context[i]);
    }
  }
}

double MlaTrial::FlopsPerSecond(ThreadPool& pool, std::chrono::milliseconds time) {
  const double pieces = PiecesPerSecond(pool, time, [&](size_t thread, size_t count) {
    Contexts contexts;
    Attend((thread * num_caches_ / pool.num_threads() + count) % num_caches_, contexts);
  });
  return pieces * 2 * kHeads * kPositions * (kWidth + kLatent);
}

}  // namespace thimble
