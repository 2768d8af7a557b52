#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/token_id.h"
#include "engine/generation.h"
#include "engine/sampler.h"
#include "grammar/token_filter.h"

namespace thimble::server {

struct TokenLogprob {
  TokenId id = 0;
  double logprob = 0;
};

/// A token that was sampled, and, where that is wanted, how likely it and the likeliest were.
struct SampledToken {
  TokenId id = 0;
  double logprob = 0;
  std::vector<TokenLogprob> top;
  bool has_logprob = true;  // not the first token of a prompt
};

/// What is to be generated.
struct JobRequest {
  std::vector<TokenId> prompt;
  size_t cut_at = 0;  // a place in the prompt to which later ones will return; 0: none
  size_t max_tokens = 0;
  SamplingOptions sampling;
  std::vector<TokenId> stop_ids;
  std::optional<size_t> top_logprobs;     // absent: no probabilities of the answer are wanted
  std::optional<size_t> prompt_logprobs;  // the same for the prompt; nothing of it is then reused
  std::shared_ptr<TokenFilter> filter;  // null: any token may come; used by the engine's side alone
};

enum class JobPhase : uint8_t { kQueued, kPrompt, kAnswer };

/// A generation shared by two threads: the engine's, which makes tokens, and the one that answers a
/// client, which takes them. Every method may be called from either.
class Job {
 public:
  explicit Job(JobRequest request) : request_(std::move(request)) {}

  const JobRequest& request() const { return request_; }

  /// Nobody wants the rest: the engine stops before the next layer.
  void Cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  // What the engine's side says.
  void SetProgress(JobPhase phase, size_t prompt_done);
  void SetCached(size_t tokens);
  void Put(SampledToken token);
  /// The next tokens of the prompt, of which the very first has no probability.
  void PutPrompt(std::vector<SampledToken> tokens);
  void End(FinishReason reason);
  void Fail(const std::string& error);

  /// What has happened since the last call.
  struct Update {
    std::vector<SampledToken> tokens;
    std::vector<SampledToken> prompt_tokens;  // where their probabilities are wanted
    JobPhase phase = JobPhase::kQueued;
    size_t prompt_done = 0;
    size_t cached_tokens = 0;  // of the prompt, that needed no computing
    bool ended = false;
    FinishReason reason = FinishReason::kStop;
    std::string error;  // not empty: it failed
  };
  Update Take();

  /// Has `wake` called whenever a token, another phase or the end has come: at once if one has,
  /// then by the engine's thread, which it must not hold up. Null: no longer; it is not being
  /// called then.
  void OnChange(std::function<void()> wake);

 private:
  void Wake();

  const JobRequest request_;
  std::atomic<bool> cancelled_ = false;
  std::mutex mutex_;
  std::function<void()> wake_;
  Update update_;
};

/// What makes tokens: the scheduler of an engine, or a script in tests.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Takes a job, or says that the queue is full. Never waits.
  virtual bool Submit(std::shared_ptr<Job> job) = 0;
  /// Tokens that prompt and answer may have together.
  virtual size_t context() const = 0;
  /// Figures for /metrics, by Prometheus name.
  virtual std::vector<std::pair<std::string, double>> Metrics() const = 0;
};

}  // namespace thimble::server
