#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/prefix_store.h"
#include "server/job.h"

namespace thimble::server {

struct SchedulerLimits {
  size_t num_sessions = 1;      // jobs that share the engine; those of EngineOptions
  size_t max_queue = 32;        // jobs that wait beside them
  uint64_t snapshot_bytes = 0;  // those of EngineOptions
  // Positions of prompts whose logits one sweep can hold, where clients ask for the probabilities
  // of a prompt: memory beside the engine, of vocab_size floats each. At least 1.
  size_t prompt_logit_rows = 16;
};

/// Owns the use of an engine: one thread, in which every sweep over the weights serves all jobs
/// that run, a token of each answer and a part of each prompt. Jobs begin in the order in which
/// they came. What a job makes is the same text as alone. Where anything fails, out of memory
/// included, the jobs that it concerns fail with its message, and the thread goes on.
class Scheduler : public Backend {
 public:
  /// Borrows the engine, which nobody else may use until this is destroyed.
  Scheduler(Engine& engine, const SchedulerLimits& limits);
  /// Ends all jobs before the next layer.
  ~Scheduler() override;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  bool Submit(std::shared_ptr<Job> job) override;
  size_t context() const override { return context_; }
  std::vector<std::pair<std::string, double>> Metrics() const override;

  /// Memory of its own, for EngineOptions::program_bytes.
  static uint64_t OwnBytes(size_t vocab_size);

  /// Takes no further job; those that run end after their present sweep as if cut, those that wait
  /// fail. Does not wait for that.
  void Drain();

 private:
  struct Running;
  class Observer;

  void Loop();
  void Step();
  bool Admit();
  void Start(std::shared_ptr<Job> job);
  std::vector<SessionStep> Plan();
  bool Sweep(const std::vector<SessionStep>& steps);
  float* PromptLogits(size_t row);
  bool ScorePrompt(Running& running);
  void Deliver(Running& running);
  TokenId Choose(Running& running);
  void Keep(Session& session);
  void KeepPrompt(Running& running);
  void Finish(Running& running, FinishReason reason);
  void DropEnded();

  Engine& engine_;
  const SchedulerLimits limits_;
  const std::vector<std::unique_ptr<Session>> sessions_;
  const size_t context_;
  PrefixStore store_;
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<float> scratch_;              // logits of one token
  std::unique_ptr<float[]> prompt_logits_;  // [prompt_logit_rows, vocab_size]

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool draining_ = false;
  bool stopping_ = false;
  std::map<std::string, double> metrics_ = {
      {"thimble_requests_total", 0},
      {"thimble_sweeps_total", 0},
      {"thimble_tokens_computed_total", 0},
      {"thimble_tokens_generated_total", 0},
      {"thimble_read_bytes_total", 0},
      {"thimble_expert_hit_rate", 0},
      {"thimble_read_wait_seconds_total", 0},
      {"thimble_snapshot_bytes", 0},
      {"thimble_running", 0}};  // all of them from the start, for whoever takes differences

  std::thread thread_;
};

}  // namespace thimble::server
