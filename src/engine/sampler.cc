#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <locale>
#include <numeric>
#include <sstream>
#include <string>

#include "base/error.h"

namespace thimble {
namespace {

constexpr float kLeastTemperature = 1e-6F;

void Require(bool holds, const char* option, const char* expected, double found) {
  if (holds) return;
  throw Error(ErrorCode::kUsage, fmt::format("{} must be {}, found {}", option, expected, found));
}

}  // namespace

void CheckSamplingOptions(const SamplingOptions& options) {
  Require(options.temperature >= 0 && std::isfinite(options.temperature), "--temp", "0 or more",
          options.temperature);
  Require(options.top_p > 0 && options.top_p <= 1, "--top-p", "above 0 and at most 1",
          options.top_p);
  Require(options.min_p >= 0 && options.min_p <= 1, "--min-p", "from 0 to 1", options.min_p);
  Require(options.repeat_penalty > 0 && std::isfinite(options.repeat_penalty), "--repeat-penalty",
          "above 0", options.repeat_penalty);
  Require(std::abs(options.frequency_penalty) <= 2, "frequency_penalty", "from -2 to 2",
          options.frequency_penalty);
  Require(std::abs(options.presence_penalty) <= 2, "presence_penalty", "from -2 to 2",
          options.presence_penalty);
  for (const LogitBias& bias : options.logit_bias) {
    Require(std::abs(bias.bias) <= 100, "logit_bias", "from -100 to 100", bias.bias);
  }
}

Sampler::Sampler(const SamplingOptions& options, size_t vocab_size, const Kernels& kernels,
                 MemoryBudget& budget)
    : options_(options),
      vocab_size_(vocab_size),
      kernels_(kernels),
      random_(options.seed),
      buffer_(budget, "sampler", ScratchBytes(vocab_size)) {
  CheckSamplingOptions(options);
  for (const LogitBias& bias : options.logit_bias) {
    if (bias.id < vocab_size) continue;
    throw Error(ErrorCode::kUsage, fmt::format("logit_bias: token {} is outside the vocabulary of "
                                               "{} tokens",
                                               bias.id, vocab_size));
  }
  Carver carver(buffer_);
  probabilities_ = carver.Take<float>(vocab_size);
  candidates_ = carver.Take<TokenId>(vocab_size);
}

uint64_t Sampler::ScratchBytes(size_t vocab_size) {
  Carver counter;
  counter.Take<float>(vocab_size);
  counter.Take<TokenId>(vocab_size);
  return counter.used_bytes();
}

TokenId Sampler::Sample(std::span<const float> logits, std::span<const TokenId> history,
                        size_t num_prompt) {
  THIMBLE_CHECK(logits.size() == vocab_size_ && num_prompt <= history.size());
  if (!kernels_.all_finite(logits.data(), logits.size())) {
    throw Error(
        ErrorCode::kRuntime,
        "the model gave logits that are not finite: its output head is damaged; compare the "
        "files with their published checksums");
  }
  Adjust(logits, history, num_prompt);
  // Below this, dividing by the temperature overflows; the likeliest token has all the probability.
  if (options_.temperature < kLeastTemperature) {
    return static_cast<TokenId>(std::max_element(probabilities_, probabilities_ + vocab_size_) -
                                probabilities_);
  }
  kernels_.scale(1.0F / options_.temperature, probabilities_, vocab_size_, probabilities_);
  kernels_.softmax(probabilities_, vocab_size_);
  std::iota(candidates_, candidates_ + vocab_size_, TokenId{0});
  return Draw(KeepLikely());
}

std::string Sampler::SaveRandom() const {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << random_;
  return text.str();
}

void Sampler::RestoreRandom(const std::string& state) {
  std::istringstream text(state);
  text.imbue(std::locale::classic());
  text >> random_;
  if (text.fail()) throw Error(ErrorCode::kUsage, "no state of a random generator");
}

// Copies the logits, with penalties and biases.
void Sampler::Adjust(std::span<const float> logits, std::span<const TokenId> history,
                     size_t num_prompt) {
  std::copy(logits.begin(), logits.end(), probabilities_);
  if (options_.repeat_penalty != 1) {
    // From the original logit, so that a token is penalised once, however often it occurred.
    for (const TokenId id : history) {
      const float logit = logits[id];
      probabilities_[id] =
          logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
    }
  }
  if (options_.frequency_penalty != 0 || options_.presence_penalty != 0) {
    PenaliseAnswer(history.subspan(num_prompt));
  }
  for (const LogitBias& bias : options_.logit_bias) probabilities_[bias.id] += bias.bias;
}

void Sampler::PenaliseAnswer(std::span<const TokenId> answer) {
  TokenId* counts = candidates_;  // which hold nothing yet
  std::fill_n(counts, vocab_size_, 0);
  for (const TokenId id : answer) ++counts[id];
  for (const TokenId id : answer) {
    if (counts[id] == 0) continue;  // an earlier occurrence was penalised for all of them
    probabilities_[id] -=
        options_.presence_penalty + options_.frequency_penalty * static_cast<float>(counts[id]);
    counts[id] = 0;
  }
}

// Moves the tokens that pass top-k, top-p and min-p to the front of candidates_, likeliest first,
// and returns how many. A heap gives them one by one: no more of the vocabulary is sorted than is
// looked at.
size_t Sampler::KeepLikely() {
  if (options_.top_k == 0 && options_.top_p >= 1 && options_.min_p == 0) return vocab_size_;
  const auto less_likely = [this](TokenId a, TokenId b) {
    return probabilities_[a] != probabilities_[b] ? probabilities_[a] < probabilities_[b] : a > b;
  };
  TokenId* end = candidates_ + vocab_size_;
  std::make_heap(candidates_, end, less_likely);
  const float least = options_.min_p * probabilities_[candidates_[0]];
  const auto top_p = static_cast<double>(options_.top_p);
  const size_t most = options_.top_k == 0 ? vocab_size_ : std::min(options_.top_k, vocab_size_);
  double mass = 0;
  size_t count = 0;
  for (bool enough = false; count < most && !enough; ++count) {
    std::pop_heap(candidates_, end - count, less_likely);
    const float probability = probabilities_[*(end - 1 - count)];
    mass += static_cast<double>(probability);
    // Top-p is measured against all that top-k keeps, so with top-k the whole of it is needed.
    enough = options_.top_k == 0 && (mass >= top_p || probability < least);
  }
  std::reverse(end - count, end);
  std::move(end - count, end, candidates_);
  if (options_.top_k == 0) mass = 1;
  return CutTail(count, mass * top_p, least);
}

// Of the first `count` candidates, how many it takes to reach `mass`, less those below `least`.
size_t Sampler::CutTail(size_t count, double mass, float least) const {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const float probability = probabilities_[candidates_[i]];
    if (i > 0 && (probability < least || sum >= mass)) return i;
    sum += static_cast<double>(probability);
  }
  return count;
}

// One of the first `count` candidates, each as likely as its share of their sum.
TokenId Sampler::Draw(size_t count) {
  double mass = 0;
  for (size_t i = 0; i < count; ++i) mass += static_cast<double>(probabilities_[candidates_[i]]);
  constexpr double kStep = 0x1p-53;
  double left = static_cast<double>(random_() >> 11) * kStep * mass;
  for (size_t i = 0; i + 1 < count; ++i) {
    left -= static_cast<double>(probabilities_[candidates_[i]]);
    if (left < 0) return candidates_[i];
  }
  return candidates_[count - 1];
}

}  // namespace thimble
