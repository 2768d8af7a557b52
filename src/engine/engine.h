#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_placement.h"
#include "base/thread_pool.h"
#include "engine/model_directory.h"
#include "engine/sampler.h"
#include "format/container_check.h"
#include "format/tensor_store.h"
#include "io/file_reader.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"
#include "memory/process_memory.h"
#include "model/decoder.h"
#include "model/state_cache.h"
#include "residency/expert_cache.h"
#include "residency/memory_plan.h"
#include "residency/sweep_clock.h"
#include "residency/trunk_stream.h"

namespace thimble {

struct EngineOptions {
  /// Bound on the memory of the whole process. Lowered to what the process can hold (GrantMemory),
  /// as Engine::budget_bytes() then says. Absent: what is free, less a reserve.
  std::optional<uint64_t> memory_bytes = std::nullopt;
  /// Compute threads; 0: the physical cores that this process may use.
  size_t num_threads = 0;
  /// Whether compute threads are bound to CPUs. Changes the speed, never a result.
  Pinning pinning = Pinning::kAuto;
  /// Tokens that each session can hold. Memory for them is set aside at once.
  size_t context = 4096;
  /// Sessions that may exist at the same time.
  size_t num_sessions = 1;
  /// Tokens of a prompt that pass through the layers together. Absent: chosen from the memory.
  std::optional<size_t> prefill_chunk = std::nullopt;
  /// Logits of every position of a prompt will be asked for, not only of the last.
  bool all_logits = false;
  /// How the latents of the MLA layers are stored in a session: less memory for a context, and
  /// logits that differ a little (docs/MODEL.md).
  LatentFormat latents = LatentFormat::kF32;
  /// What the program itself will use beside the engine; set aside.
  uint64_t program_bytes = 0;
  /// The size of this process, to which the plan adds the engine's. Absent: what the kernel says
  /// when the model is opened. With a fixed size the plan depends on the options alone.
  std::optional<ProcessMemory> process = std::nullopt;
  /// Memory for snapshots of sessions (engine/snapshot.h), set aside at once.
  uint64_t snapshot_bytes = 0;
  /// How the weights are read: changes the speed, never a result.
  ReadMode read_mode = ReadMode::kAuto;
  /// Compares a packed model with its checksums: the trunk when it is opened, which reads it once
  /// more, each expert when it comes from the drive.
  bool check = false;
  /// Reads what the budget lets stay when the model is opened, not as it is needed.
  bool preload = false;
  /// Told of the bytes that the last two read while the model is opened.
  std::function<void(const char* what, uint64_t done, uint64_t total)> on_load = nullptr;
};

/// How much of the memory that stays - pinned weights and states of sessions - the kernel has been
/// made to keep out of the swap.
struct LockedMemory {
  uint64_t wanted_bytes = 0;
  uint64_t locked_bytes = 0;
  std::string obstacle;  // why not all of it; empty where it is
};

/// What the engine has read and waited for since it was opened.
struct EngineStats {
  uint64_t trunk_read_bytes = 0;
  uint64_t expert_read_bytes = 0;
  uint64_t expert_requests = 0;
  uint64_t expert_hits = 0;
  double io_wait_seconds = 0;  // in sweeps, and while what stays was read ahead
  SweepTimes sweeps;

  uint64_t ReadBytes() const { return trunk_read_bytes + expert_read_bytes; }
  /// The share of the requested experts that were in memory; 0 where none was requested.
  double HitRate() const {
    return expert_requests == 0
               ? 0
               : static_cast<double>(expert_hits) / static_cast<double>(expert_requests);
  }
};

class Session;
class Snapshot;

/// One session's part of a sweep.
struct SessionStep {
  Session* session = nullptr;
  std::span<const TokenId> tokens;  // at least one
  bool wants_logits = false;        // of the last of them, as Session::logits()
  float* all_logits = nullptr;      // of every one, [tokens.size(), vocab_size]; null: not wanted
};

/// A model, ready to run inside a memory budget. Owns the weights' readers and caches, the threads
/// and the workspace. Its sessions are advanced by one thread at a time, and must be gone before it
/// is.
class Engine {
 public:
  /// Opens the weights of `model`, whose config and tokenizer it borrows, and plans the memory.
  /// Error(kUsage) for a context outside 1 .. the model's own, Error(kBadModel), OverBudgetError.
  static std::unique_ptr<Engine> Open(const ModelDirectory& model, const EngineOptions& options);

  const ModelDirectory& model() const { return model_; }
  const ModelConfig& config() const { return model_.config; }
  /// What was quantised when the model was packed; empty where it is exact.
  const std::vector<LossyPart>& lossy() const { return store_.lossy(); }
  const Kernels& kernels() const { return kernels_; }
  const MemoryPlan& plan() const { return plan_; }
  size_t num_threads() const { return pool_.num_threads(); }
  /// Where the threads run.
  const ThreadPlacement& placement() const { return placement_; }
  uint64_t budget_bytes() const { return budget_.limit_bytes(); }
  const EngineOptions& options() const { return options_; }
  /// What the budget is used for, by name.
  std::map<std::string, uint64_t> Ledger() const { return budget_.Ledger(); }
  EngineStats stats() const;
  const LockedMemory& locked_memory() const { return locked_; }
  /// How the weights are read, in words.
  std::string ReaderDescription() const { return reader_->Describe(); }

  /// Advances several sessions in one sweep over the weights, each by its tokens. At these sizes
  /// the sweep is the cost, whoever shares it; each session's logits are the same bits as alone. At
  /// most MaxSweepTokens() tokens in all. Error(kUsage) before anything changed as
  /// Decoder::CheckTokens says; any later error, Error(kInterrupted) of the observer among them,
  /// poisons every session of the sweep.
  void Advance(std::span<const SessionStep> steps, SweepObserver* observer);
  size_t MaxSweepTokens() const;

  /// What tells this model's weights from others of the same shape, without reading all of them: a
  /// checksum of the shape, of every layer's norms and of the routers' biases. Reads a few
  /// megabytes the first time. Error(kRuntime).
  uint64_t Fingerprint();

  /// A sampler for this model's vocabulary, its scratch charged to this engine's budget.
  Sampler NewSampler(const SamplingOptions& options) {
    return Sampler(options, config().vocab_size, kernels_, budget_);
  }

 private:
  friend class Session;
  struct Opening {
    TensorStore store;
    std::optional<ContainerCheck> check;
  };
  Engine(const ModelDirectory& model, const EngineOptions& options, Opening opening);
  void Preload();
  bool Lock(Buffer& buffer);
  void Unlock(uint64_t bytes, bool was_locked);
  void ThrowIfLost() const;
  friend class Snapshot;
  void Sweep(std::span<const SessionStep> steps, bool all_logits, SweepObserver* observer);
  void SweepKept(std::span<const SweepItem> items, SweepObserver* observer);

  const ModelDirectory& model_;
  const EngineOptions options_;
  const Kernels& kernels_;
  const TensorStore store_;
  const std::optional<ContainerCheck> check_;
  MemoryBudget budget_;
  const ThreadPlacement placement_;
  ThreadPool pool_;
  TrunkSchedule schedule_;  // until the trunk's stream takes it
  MemoryPlan plan_;
  Reservation process_;
  Reservation page_tables_;
  LockedMemory locked_;
  ReadMonitor monitor_;
  SweepTimes sweep_times_;
  std::unique_ptr<FileReader> reader_;
  TrunkStream trunk_;
  ExpertCache experts_;
  Decoder decoder_;
  size_t num_open_sessions_ = 0;
  std::optional<uint64_t> fingerprint_;
};

/// One conversation: the tokens so far and the state that they left. Used by one thread.
class Session {
 public:
  /// An empty session of EngineOptions::context tokens. Error(kUsage) beyond num_sessions.
  explicit Session(Engine& engine);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Told of each chunk's logits, when all are wanted: rows [first_position, first_position +
  /// num_rows), each vocab_size floats, valid during the call.
  using LogitsSink = std::function<void(size_t first_position, const float* rows, size_t num_rows)>;
  /// Told after each chunk how many of the tokens are done, and asked before each layer whether to
  /// go on.
  class Observer : public SweepObserver {
   public:
    virtual void OnProgress(size_t done, size_t total) = 0;
    /// Between two sweeps, whether to go on. False: Error(kInterrupted), but the session is whole
    /// as far as it has come.
    virtual bool OnPause() { return true; }
  };

  /// Advances by `tokens` in chunks of the plan's width. Afterwards logits() are those of the last
  /// token. A `sink` needs an engine with all_logits. Error(kUsage) before anything changed as
  /// Decoder::CheckTokens says. Any later error, Error(kInterrupted) of an observer that stops a
  /// sweep among them, leaves the session poisoned. Observer and sink may be null.
  void Append(std::span<const TokenId> tokens, Observer* observer,
              const LogitsSink& sink = nullptr);

  /// [vocab_size], after the last token. Valid until the next Append.
  std::span<const float> logits() const { return {last_logits_, engine_.config().vocab_size}; }
  /// Whether logits() are there: not in an empty session, nor after a chunk that wanted none.
  bool has_logits() const { return last_logits_ != nullptr; }
  size_t num_tokens() const { return state_.num_tokens(); }
  /// All of them, from the first.
  const std::vector<TokenId>& tokens() const { return tokens_; }
  /// How its latents are stored.
  LatentFormat latents() const { return state_.latent_shape().format; }
  /// After an error in the middle of a sweep: only Clear, Restore or the end can follow.
  bool poisoned() const { return state_.poisoned(); }
  /// Makes the session empty again.
  void Clear();
  size_t capacity() const { return state_.capacity(); }
  Engine& engine() const { return engine_; }

 private:
  friend class Engine;
  friend class Snapshot;
  friend class SessionFile;
  float* logits_data() { return reinterpret_cast<float*>(logits_buffer_.data()); }
  /// The state's memory has been overwritten by that of `tokens`; logits, if any, are the first
  /// row.
  void Adopt(std::vector<TokenId> tokens, bool has_logits);

  Engine& engine_;
  StateCache state_;
  bool locked_ = false;
  Buffer logits_buffer_;
  const float* last_logits_ = nullptr;
  std::vector<TokenId> tokens_;
};

}  // namespace thimble
