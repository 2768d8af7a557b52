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
  /// Tokens that each session can hold. Their memory is reserved when the model is opened.
  size_t context = 4096;
  /// Sessions that may exist at the same time.
  size_t num_sessions = 1;
  /// Tokens of a prompt that pass through the layers together. Absent: chosen from the memory.
  std::optional<size_t> prefill_chunk = std::nullopt;
  /// Logits of every prompt position will be requested, not only those of the last.
  bool all_logits = false;
  /// How a session stores the latents of the MLA layers. The smaller formats need less memory for a
  /// context and change the logits a little (docs/MODEL.md).
  LatentFormat latents = LatentFormat::kF32;
  /// Reserved for the program itself, in addition to the engine.
  uint64_t program_bytes = 0;
  /// The size of this process, to which the plan adds the engine's. Absent: what the kernel says
  /// when the model is opened. With a fixed size the plan depends on the options alone.
  std::optional<ProcessMemory> process = std::nullopt;
  /// Memory for snapshots of sessions (engine/snapshot.h), reserved when the model is opened.
  uint64_t snapshot_bytes = 0;
  /// How the weights are read. Changes the speed, never a result.
  ReadMode read_mode = ReadMode::kAuto;
  /// Compares a packed model with its checksums: the trunk when the model is opened, at the cost of
  /// one extra read, and each expert whenever it comes from the drive.
  bool check = false;
  /// Reads the weights that stay resident when the model is opened, not when they are first needed.
  bool preload = false;
  /// Receives the progress of `check` and `preload`, in bytes, while the model is opened.
  std::function<void(const char* what, uint64_t done, uint64_t total)> on_load = nullptr;
};

/// How much of the pinned weights and session states the kernel has locked against swapping.
struct LockedMemory {
  uint64_t wanted_bytes = 0;
  uint64_t locked_bytes = 0;
  std::string obstacle;  // why not all of it is locked; empty if it is
};

/// What the engine has read and waited for since it was opened.
struct EngineStats {
  uint64_t trunk_read_bytes = 0;
  uint64_t expert_read_bytes = 0;
  uint64_t expert_requests = 0;
  uint64_t expert_hits = 0;
  double io_wait_seconds = 0;  // in sweeps and during `preload`
  SweepTimes sweeps;

  uint64_t ReadBytes() const { return trunk_read_bytes + expert_read_bytes; }
  /// The share of the requested experts that were in memory; 0 if none was requested.
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
  bool wants_logits = false;        // of the last token, as Session::logits()
  float* all_logits = nullptr;      // of every one, [tokens.size(), vocab_size]; null: not wanted
};

/// A model that is ready to run within a memory budget. Owns the readers and caches of the weights,
/// the threads and the workspace. One thread at a time advances its sessions. It must outlive them.
class Engine {
 public:
  /// Opens the weights of `model`, whose config and tokenizer it borrows, and plans the memory.
  /// Error(kUsage) for a context outside 1 .. the model's own, Error(kBadModel), OverBudgetError.
  static std::unique_ptr<Engine> Open(const ModelDirectory& model, const EngineOptions& options);

  const ModelDirectory& model() const { return model_; }
  const ModelConfig& config() const { return model_.config; }
  /// The parts that were quantised when the model was packed; empty if it is exact.
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

  /// Advances several sessions in one sweep over the weights, each by its own tokens, at most
  /// MaxSweepTokens() in total. The sweep is the main cost and all sessions share it; each gets the
  /// same logits, bit for bit, as alone. Error(kUsage), before anything changes, as for
  /// Decoder::CheckTokens. Any later error, including Error(kInterrupted) from the observer,
  /// poisons every session of the sweep.
  void Advance(std::span<const SessionStep> steps, SweepObserver* observer);
  size_t MaxSweepTokens() const;

  /// Distinguishes this model's weights from others of the same shape (engine/fingerprint.h). The
  /// first call reads a few megabytes. Error(kRuntime) if a read fails.
  uint64_t Fingerprint();

  /// A sampler for this model's vocabulary. Its scratch memory is charged to this engine's budget.
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
  TrunkSchedule schedule_;  // moved into trunk_
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

/// One conversation: its tokens and the state they left. Used by one thread at a time.
class Session {
 public:
  /// An empty session of EngineOptions::context tokens. Error(kUsage) beyond num_sessions.
  explicit Session(Engine& engine);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Receives each chunk's logits if all are wanted: rows [first_position, first_position +
  /// num_rows) of vocab_size floats each, valid during the call.
  using LogitsSink = std::function<void(size_t first_position, const float* rows, size_t num_rows)>;
  /// Called after each chunk with the number of tokens done, and before each layer to ask whether
  /// to continue.
  class Observer : public SweepObserver {
   public:
    virtual void OnProgress(size_t done, size_t total) = 0;
    /// Asks between two sweeps whether to continue. False throws Error(kInterrupted) and leaves the
    /// session whole up to that point.
    virtual bool OnPause() { return true; }
  };

  /// Advances by `tokens` in chunks of the plan's width. logits() are then those of the last token.
  /// A `sink` requires an engine with all_logits. Error(kUsage), before anything changes, as for
  /// Decoder::CheckTokens. Any later error, including Error(kInterrupted) from an observer that
  /// stops a sweep, poisons the session. Observer and sink may be null.
  void Append(std::span<const TokenId> tokens, Observer* observer,
              const LogitsSink& sink = nullptr);

  /// [vocab_size], after the last token. Valid until the next Append.
  std::span<const float> logits() const { return {last_logits_, engine_.config().vocab_size}; }
  /// Whether logits() are available: not in an empty session or after a chunk without logits.
  bool has_logits() const { return last_logits_ != nullptr; }
  size_t num_tokens() const { return state_.num_tokens(); }
  /// All tokens, from the first.
  const std::vector<TokenId>& tokens() const { return tokens_; }
  /// How its latents are stored.
  LatentFormat latents() const { return state_.latent_shape().format; }
  /// True after an error during a sweep. Only Clear or Snapshot::RestoreTo makes the session usable
  /// again.
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
  /// Call after the state's memory was overwritten with that of `tokens`. Logits, if any, are the
  /// first row.
  void Adopt(std::vector<TokenId> tokens, bool has_logits);

  Engine& engine_;
  StateCache state_;
  bool locked_ = false;
  Buffer logits_buffer_;
  const float* last_logits_ = nullptr;
  std::vector<TokenId> tokens_;
};

}  // namespace thimble
