#include "measure/sweep_bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace thimble {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPromptTokens = 8;  // before decoding
constexpr size_t kMostDecoded = 256;
constexpr size_t kMostPrompt = 512;
constexpr double kRoundSeconds = 0.5;  // a round of decoding, about
constexpr double kQuickToken = 0.05;   // up to here the whole prompt is worth its time
constexpr size_t kMaxRounds = 5;
constexpr double kPatience = 10;  // seconds after which no further round begins

class SweepBench {
 public:
  SweepBench(Engine& engine, Session::Observer* observer)
      : engine_(engine), observer_(observer), session_(engine) {}

  // The first `count` ids of a text that says nothing.
  std::vector<TokenId> Prompt(size_t count) const {
    std::vector<TokenId> ids;
    for (size_t i = 0; i < count; ++i) {
      ids.push_back(static_cast<TokenId>((i * 7919 + 11) % engine_.config().vocab_size));
    }
    return ids;
  }
  void Restart() { session_.Clear(); }
  double Append(std::span<const TokenId> tokens) {
    const auto start = Clock::now();
    session_.Append(tokens, observer_);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  double AppendOneByOne(std::span<const TokenId> tokens) {
    double seconds = 0;
    for (size_t i = 0; i < tokens.size(); ++i) seconds += Append(tokens.subspan(i, 1));
    return seconds;
  }
  TokenId Likeliest() const {
    const auto logits = session_.logits();
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  // Takes the logits as those that all that follow have to equal.
  void Keep() { expected_.assign(session_.logits().begin(), session_.logits().end()); }
  void Compare(const char* how) const {
    const auto logits = session_.logits();
    if (std::memcmp(logits.data(), expected_.data(), logits.size_bytes()) == 0) return;
    throw Error(ErrorCode::kRuntime, std::string("the same tokens gave different logits ") + how +
                                         "; check memory and drive, and please report this");
  }

  // Times rounds that append `tokens` after `before` in an empty session, one by one or together.
  SweepMeasurement Measure(const char* name, std::span<const TokenId> before,
                           std::span<const TokenId> tokens, bool one_by_one) {
    std::vector<double> rates;
    uint64_t read_bytes = 0;
    SweepTimes times;
    const auto start = Clock::now();
    do {
      session_.Clear();
      if (!before.empty()) Append(before);
      const EngineStats earlier = engine_.stats();
      const double taken = one_by_one ? AppendOneByOne(tokens) : Append(tokens);
      const EngineStats later = engine_.stats();
      Compare("in another run");
      rates.push_back(static_cast<double>(tokens.size()) / taken);
      read_bytes += later.ReadBytes() - earlier.ReadBytes();
      times.io_bound_seconds += later.sweeps.io_bound_seconds - earlier.sweeps.io_bound_seconds;
      times.compute_bound_seconds +=
          later.sweeps.compute_bound_seconds - earlier.sweeps.compute_bound_seconds;
    } while (rates.size() < kMaxRounds &&
             std::chrono::duration<double>(Clock::now() - start).count() < kPatience);
    const double seconds = times.io_bound_seconds + times.compute_bound_seconds;
    const double num_timed = static_cast<double>(tokens.size() * rates.size());
    return {{name, Unit::kTokens, engine_.num_threads(), SpreadOf(rates), std::nullopt},
            tokens.size(),
            static_cast<double>(read_bytes) / num_timed,
            times.io_bound_seconds / seconds,
            times.compute_bound_seconds / seconds};
  }

 private:
  Engine& engine_;
  Session::Observer* observer_;
  Session session_;
  std::vector<float> expected_;
};

}  // namespace

size_t SweepBenchContext(const ModelConfig& config) {
  return std::min(config.max_context, kMostPrompt + kPromptTokens);
}

SweepMeasurement BenchDecode(Engine& engine, Session::Observer* observer) {
  SweepBench bench(engine, observer);
  const size_t room = SweepBenchContext(engine.config());
  const std::vector<TokenId> prompt = bench.Prompt(std::min(kPromptTokens, room - 1));
  // The prompt comes first, so that the token does not bear what only the first sweep costs.
  bench.Append(prompt);
  std::vector<TokenId> decoded = {bench.Likeliest()};
  const double seconds = bench.Append(decoded);
  const auto affordable = static_cast<size_t>(std::min(kRoundSeconds / seconds, 1e6));
  const size_t count =
      std::min(std::clamp<size_t>(affordable, 2, kMostDecoded), room - prompt.size());
  while (decoded.size() < count) {
    decoded.push_back(bench.Likeliest());
    bench.Append({&decoded.back(), 1});
  }
  bench.Keep();
  std::vector<TokenId> all = prompt;
  all.insert(all.end(), decoded.begin(), decoded.end());
  bench.Restart();
  bench.Append(all);
  bench.Compare("as a prompt than decoded one by one");
  return bench.Measure("decode", prompt, decoded, true);
}

SweepMeasurement BenchPrefill(Engine& engine, Session::Observer* observer) {
  SweepBench bench(engine, observer);
  const double first = bench.Append(bench.Prompt(1));
  const size_t wanted = first <= kQuickToken ? kMostPrompt : kPromptTokens;
  const std::vector<TokenId> prompt =
      bench.Prompt(std::min(wanted, SweepBenchContext(engine.config())));
  const std::span<const TokenId> tokens = prompt;
  bench.Restart();
  bench.Append(tokens);
  bench.Keep();
  const size_t part = tokens.size() / 3;
  bench.Restart();
  if (part > 0) bench.Append(tokens.first(part));
  bench.Append(tokens.subspan(part));
  bench.Compare("in two pieces than in one");
  return bench.Measure("prefill", {}, tokens, false);
}

}  // namespace thimble
