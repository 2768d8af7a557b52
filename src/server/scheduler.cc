#include "server/scheduler.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/start_thread.h"
#include "memory/process_memory.h"
#include "server/token_probability.h"

namespace thimble::server {
namespace {

// In a long prompt, tokens from one snapshot to the next: what a client that hangs up and asks
// again loses at most.
constexpr size_t kSnapshotInterval = 2048;

// A logit that leaves no probability, and is still a number.
constexpr float kForbidden = -1e30F;

bool Contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::ranges::find(ids, id) != ids.end();
}

// Of the exception that is being handled. Needs no memory where none is left.
std::string FailureText() {
  std::string least = "out of memory";  // inside the string itself
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return least;
  } catch (const std::exception& error) {
    try {
      return error.what();
    } catch (const std::bad_alloc&) {
      return least;
    }
  } catch (...) {
    return "unknown fault";
  }
}

bool IsInterrupt() {
  try {
    throw;
  } catch (const Error& error) {
    return error.code() == ErrorCode::kInterrupted;
  } catch (...) {
    return false;
  }
}

std::vector<std::unique_ptr<Session>> NewSessions(Engine& engine, size_t count) {
  std::vector<std::unique_ptr<Session>> sessions;
  sessions.reserve(count);
  for (size_t i = 0; i < count; ++i) sessions.push_back(std::make_unique<Session>(engine));
  return sessions;
}

}  // namespace

// A job that has a session.
struct Scheduler::Running {
  Running(std::shared_ptr<Job> its_job, Session& its_session, Sampler its_sampler)
      : job(std::move(its_job)),
        session(&its_session),
        sampler(std::move(its_sampler)),
        history(job->request().prompt) {
    history.reserve(history.size() + job->request().max_tokens);
  }

  size_t PromptLeft() const {
    const size_t length = job->request().prompt.size();
    return session->num_tokens() < length ? length - session->num_tokens() : 0;
  }

  std::shared_ptr<Job> job;
  Session* session;
  Sampler sampler;
  std::vector<TokenId> history;  // prompt and answer
  size_t num_made = 0;
  size_t last_kept = 0;  // tokens at the latest snapshot
  // Of the prompt's tokens in the present sweep, where their probabilities are wanted.
  float* prompt_logits = nullptr;
  size_t num_scored = 1;  // tokens of the prompt whose probabilities were told; the first has none
  bool in_sweep = false;
  bool ended = false;
};

// Stops a sweep that nobody waits for any more. One that still serves somebody goes on: stopping it
// would cost the others their state.
class Scheduler::Observer : public SweepObserver {
 public:
  explicit Observer(Scheduler& scheduler) : scheduler_(scheduler) {}
  bool OnLayer(size_t) override { return Continue(); }
  bool Continue() override {
    {
      const std::lock_guard lock(scheduler_.mutex_);
      if (scheduler_.stopping_) return false;
    }
    return std::ranges::any_of(scheduler_.running_, [](const auto& running) {
      return running->in_sweep && !running->job->cancelled();
    });
  }

 private:
  Scheduler& scheduler_;
};

Scheduler::Scheduler(Engine& engine, const SchedulerLimits& limits)
    : engine_(engine),
      limits_(limits),
      sessions_(NewSessions(engine, limits.num_sessions)),
      context_(sessions_.front()->capacity()),
      store_(limits.snapshot_bytes) {
  scratch_.reserve(engine.config().vocab_size);
  thread_ = StartThread("the engine's thread", [this] { Loop(); });
}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

bool Scheduler::Submit(std::shared_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  if (draining_ || queue_.size() >= limits_.max_queue) return false;
  queue_.push_back(std::move(job));
  metrics_["thimble_requests_total"] += 1;
  changed_.notify_all();
  return true;
}

void Scheduler::Drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  for (const auto& job : queue_) job->Fail("the server is shutting down");
  queue_.clear();
  changed_.notify_all();
}

uint64_t Scheduler::OwnBytes(size_t vocab_size) { return vocab_size * sizeof(float); }

std::vector<std::pair<std::string, double>> Scheduler::Metrics() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::string, double>> metrics(metrics_.begin(), metrics_.end());
  metrics.emplace_back("thimble_memory_peak_bytes",
                       static_cast<double>(ReadProcessMemory().peak_rss_bytes));
  metrics.emplace_back("thimble_memory_budget_bytes", static_cast<double>(engine_.budget_bytes()));
  metrics.emplace_back("thimble_queue_length", static_cast<double>(queue_.size()));
  return metrics;
}

// Gives sessions to jobs that wait. False once there is nothing left to do for good.
bool Scheduler::Admit() {
  while (true) {
    std::shared_ptr<Job> next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !running_.empty() || !queue_.empty(); });
      if (stopping_) return false;
      std::erase_if(queue_, [](const auto& job) { return job->cancelled(); });
      if (running_.size() == sessions_.size() || queue_.empty()) {
        if (running_.empty()) continue;
        return true;
      }
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    try {
      Start(next);
    } catch (...) {
      next->Fail(FailureText());
    }
  }
}

void Scheduler::Start(std::shared_ptr<Job> job) {
  const std::vector<TokenId>& prompt = job->request().prompt;
  const bool scored = job->request().prompt_logprobs.has_value();
  // Of the free sessions, the one that knows most of the prompt.
  Session* best = nullptr;
  size_t best_known = 0;
  for (const auto& session : sessions_) {
    const bool taken = std::ranges::any_of(
        running_, [&](const auto& running) { return running->session == session.get(); });
    if (taken) continue;
    const bool fits = !session->poisoned() && IsPrefix(session->tokens(), prompt);
    const size_t known = fits ? session->num_tokens() : 0;
    if (best == nullptr || known > best_known) {
      best = session.get();
      best_known = known;
    }
  }
  // What the session held may be wanted again.
  Keep(*best);
  size_t known = 0;
  if (scored) {
    // The probabilities need the logits of every position.
    best->Clear();
    job->PutPrompt({{prompt.front(), 0, {}, false}});
  } else {
    known = store_.Resume(*best, prompt);
  }
  job->SetCached(known);
  job->SetProgress(JobPhase::kPrompt, known);
  Sampler sampler = engine_.NewSampler(job->request().sampling);
  running_.push_back(std::make_unique<Running>(std::move(job), *best, std::move(sampler)));
}

void Scheduler::Loop() {
  while (true) {
    // The last line of defence: the jobs that run fail, and the server goes on.
    try {
      if (!Admit()) break;
      Step();
    } catch (...) {
      const std::string text = FailureText();
      for (const auto& running : running_) running->job->Fail(text);
      running_.clear();
    }
  }
  for (const auto& running : running_) running->job->End(FinishReason::kInterrupted);
  running_.clear();
  const std::lock_guard lock(mutex_);
  for (const auto& job : queue_) job->Fail("the server is shutting down");
  queue_.clear();
}

// One sweep, and what goes before and after it.
void Scheduler::Step() {
  for (const auto& running : running_) {
    if (running->job->cancelled()) Finish(*running, FinishReason::kInterrupted);
  }
  DropEnded();
  // A prompt that is known with its logits needs no sweep before the first token.
  for (const auto& running : running_) {
    if (running->PromptLeft() == 0 && running->num_made == 0) Deliver(*running);
  }
  DropEnded();
  const std::vector<SessionStep> steps = Plan();
  if (steps.empty()) return;
  if (!Sweep(steps)) return DropEnded();
  bool draining = false;
  {
    const std::lock_guard lock(mutex_);
    draining = draining_;
    metrics_["thimble_sweeps_total"] += 1;
    for (const SessionStep& step : steps) {
      metrics_["thimble_tokens_computed_total"] += static_cast<double>(step.tokens.size());
    }
  }
  for (const auto& running : running_) {
    if (!running->in_sweep || running->ended) continue;
    if (!ScorePrompt(*running)) continue;
    KeepPrompt(*running);
    if (running->PromptLeft() == 0) Deliver(*running);
    if (draining && !running->ended) Finish(*running, FinishReason::kLength);
  }
  DropEnded();
}

// A token of every answer, and of the prompts what the sweep has room for, in equal parts.
std::vector<SessionStep> Scheduler::Plan() {
  size_t num_prompts = 0;
  for (const auto& running : running_) num_prompts += running->PromptLeft() > 0 ? 1 : 0;
  size_t room = engine_.MaxSweepTokens() - (running_.size() - num_prompts);
  size_t rows = 0;  // of prompt_logits_ that are taken
  std::vector<SessionStep> steps;
  for (const auto& running : running_) {
    const size_t left = running->PromptLeft();
    const size_t position = running->session->num_tokens();
    const auto tokens = std::span(running->history).subspan(position);
    if (left == 0) {
      steps.push_back({running->session, tokens, true});
    } else {
      size_t count = std::min(left, room / std::max<size_t>(num_prompts, 1));
      --num_prompts;
      const size_t cut = running->job->request().cut_at;
      if (position < cut) count = std::min(count, cut - position);
      if (running->job->request().prompt_logprobs) {
        count = std::min(count, limits_.prompt_logit_rows - rows);
        running->prompt_logits = PromptLogits(rows);
        rows += count;
      }
      room -= count;
      if (count > 0) {
        steps.push_back(
            {running->session, tokens.first(count), count == left, running->prompt_logits});
      }
    }
    running->in_sweep = left == 0 || (!steps.empty() && steps.back().session == running->session);
  }
  return steps;
}

// False where the sweep failed: then all that were in it have ended.
bool Scheduler::Sweep(const std::vector<SessionStep>& steps) {
  Observer observer(*this);
  try {
    engine_.Advance(steps, &observer);
    return true;
  } catch (...) {
    const bool stopped = IsInterrupt();
    const std::string text = stopped ? std::string() : FailureText();
    for (const auto& running : running_) {
      if (!running->in_sweep) continue;
      if (stopped) {
        running->job->End(FinishReason::kInterrupted);
      } else {
        running->job->Fail(text);
      }
      running->ended = true;
    }
    return false;
  }
}

// Row `row` of the logits of prompts. They are allocated when they are first wanted.
float* Scheduler::PromptLogits(size_t row) {
  const size_t vocab_size = engine_.config().vocab_size;
  if (prompt_logits_ == nullptr) {
    prompt_logits_ =
        std::make_unique_for_overwrite<float[]>(limits_.prompt_logit_rows * vocab_size);
  }
  return prompt_logits_.get() + row * vocab_size;
}

// Tells the probabilities of the prompt's tokens that follow those of the sweep. False where the
// job has failed.
bool Scheduler::ScorePrompt(Running& running) {
  if (running.prompt_logits == nullptr) return true;
  const JobRequest& request = running.job->request();
  const size_t vocab_size = engine_.config().vocab_size;
  const float* row = std::exchange(running.prompt_logits, nullptr);
  const size_t end = std::min(running.session->num_tokens() + 1, request.prompt.size());
  std::vector<SampledToken> tokens;
  for (size_t next = running.num_scored; next < end; ++next, row += vocab_size) {
    tokens.push_back(Describe(request.prompt[next], {row, vocab_size}, request.prompt_logprobs));
    if (std::isfinite(tokens.back().logprob)) continue;
    running.job->Fail("the model gave logits that are not finite: its output head is damaged");
    running.ended = true;
    return false;
  }
  running.num_scored = end;
  running.job->PutPrompt(std::move(tokens));
  return true;
}

void Scheduler::KeepPrompt(Running& running) {
  const size_t position = running.session->num_tokens();
  const JobRequest& request = running.job->request();
  if (running.num_made > 0) return;
  running.job->SetProgress(JobPhase::kPrompt, std::min(position, request.prompt.size()));
  if (request.prompt_logprobs) return;  // rarely a beginning of anything else
  const bool is_end = position == request.prompt.size() || position == request.cut_at;
  if (!is_end && position - running.last_kept < kSnapshotInterval) return;
  Keep(*running.session);
  running.last_kept = position;
}

// A snapshot saves time; the answer needs none.
void Scheduler::Keep(Session& session) {
  try {
    store_.Keep(session);
  } catch (const std::exception&) {
  }
}

void Scheduler::Deliver(Running& running) {
  const JobRequest& request = running.job->request();
  if (running.num_made == request.max_tokens) return Finish(running, FinishReason::kLength);
  try {
    const auto logits = running.session->logits();
    const TokenId id = Choose(running);
    running.history.push_back(id);
    ++running.num_made;
    if (running.num_made == 1) running.job->SetProgress(JobPhase::kAnswer, request.prompt.size());
    running.job->Put(Describe(id, logits, request.top_logprobs));
    if (Contains(request.stop_ids, id)) return Finish(running, FinishReason::kStop);
  } catch (...) {
    running.job->Fail(FailureText());
    running.ended = true;
    return;
  }
  if (running.num_made == request.max_tokens) return Finish(running, FinishReason::kLength);
  if (running.session->num_tokens() == context_) Finish(running, FinishReason::kContext);
}

// A token that the filter allows, drawn once as if the others had no probability: the same logits,
// filter and random numbers give the same token, whatever was drawn before.
TokenId Scheduler::Choose(Running& running) {
  const auto logits = running.session->logits();
  TokenFilter* filter = running.job->request().filter.get();
  const size_t num_prompt = running.job->request().prompt.size();
  if (filter == nullptr) return running.sampler.Sample(logits, running.history, num_prompt);
  const TokenMask& allowed = filter->Allowed();
  scratch_.assign(logits.begin(), logits.end());
  TokenId likeliest = 0;
  for (TokenId id = 0; id < scratch_.size(); ++id) {
    if (!allowed.Has(id)) scratch_[id] = kForbidden;
    if (scratch_[id] > scratch_[likeliest]) likeliest = id;
  }
  TokenId id = running.sampler.Sample(scratch_, running.history, num_prompt);
  // Rounding can leave a last token without probability as the one that is drawn.
  if (!allowed.Has(id)) id = likeliest;
  filter->Accept(id);
  return id;
}

void Scheduler::Finish(Running& running, FinishReason reason) {
  const std::lock_guard lock(mutex_);
  metrics_["thimble_tokens_generated_total"] += static_cast<double>(running.num_made);
  running.job->End(reason);
  running.ended = true;
}

void Scheduler::DropEnded() {
  std::erase_if(running_, [](const auto& running) { return running->ended; });
  const EngineStats stats = engine_.stats();
  const std::lock_guard lock(mutex_);
  metrics_["thimble_read_bytes_total"] = static_cast<double>(stats.ReadBytes());
  metrics_["thimble_expert_hit_rate"] = stats.HitRate();
  metrics_["thimble_read_wait_seconds_total"] = stats.io_wait_seconds;
  metrics_["thimble_snapshot_bytes"] = static_cast<double>(store_.used_bytes());
  metrics_["thimble_running"] = static_cast<double>(running_.size());
}

}  // namespace thimble::server
