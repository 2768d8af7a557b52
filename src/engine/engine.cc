#include "engine/engine.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/cpu_topology.h"
#include "base/error.h"
#include "engine/fingerprint.h"
#include "engine/planner.h"
#include "memory/process_memory.h"
#include "residency/weight_layout.h"

namespace thimble {
namespace {

std::vector<std::filesystem::path> PathsOf(const TensorStore& store) {
  std::vector<std::filesystem::path> paths;
  for (const ShardFile& file : store.files()) paths.push_back(file.path);
  return paths;
}

size_t NumThreads(const EngineOptions& options) {
  return options.num_threads != 0 ? options.num_threads : UsablePhysicalCores();
}

ThreadPlacement Place(const EngineOptions& options) {
  return PlaceThreads(ReadCpuTopology(), NumThreads(options), options.pinning, LoadAverage());
}

// A reader whose threads run on `cpus`, which they inherit from the one that starts them.
std::unique_ptr<FileReader> OpenReaderOn(const std::vector<size_t>& cpus,
                                         const std::vector<std::filesystem::path>& paths,
                                         ReadMode mode) {
  const AffinityScope scope(cpus);
  return OpenReader(paths, mode);
}

// A plan, and the trunk's schedule in blocks of the plan's size.
MemoryPlan PlanFor(const ModelConfig& config, const TensorStore& store, const PlanRequest& request,
                   TrunkSchedule* schedule) {
  const WeightSizes sizes = MeasureWeights(config, LayOutWeights(config, store), schedule);
  MemoryPlan plan = PlanMemory(config, sizes, request);
  if (plan.block_bytes != sizes.block_bytes) {
    *schedule = {};
    *schedule = TrunkSchedule::Build(config, store, plan.block_bytes);
  }
  return plan;
}

}  // namespace

std::unique_ptr<Engine> Engine::Open(const ModelDirectory& model, const EngineOptions& options) {
  if (options.context == 0 || options.context > model.config.max_context) {
    throw Error(ErrorCode::kUsage, "a context of " + std::to_string(options.context) +
                                       " tokens was asked for, expected 1 to the model's " +
                                       std::to_string(model.config.max_context));
  }
  Opening opening = {TensorStore::Open(model.path, model.config), std::nullopt};
  if (options.check) {
    opening.check = ContainerCheck::Open(model.path, model.config);
    opening.check->CheckTrunk([&](uint64_t done, uint64_t total) {
      if (options.on_load) options.on_load("checking the trunk", done, total);
    });
  }
  std::unique_ptr<Engine> engine(new Engine(model, options, std::move(opening)));
  if (options.preload) engine->Preload();
  return engine;
}

Engine::Engine(const ModelDirectory& model, const EngineOptions& options, Opening opening)
    : model_(model),
      options_(options),
      kernels_(BestKernels()),
      store_(std::move(opening.store)),
      check_(std::move(opening.check)),
      budget_(options.memory_bytes ? GrantMemory(*options.memory_bytes, ReadMemoryCeiling()).bytes
                                   : DefaultMemoryBudget()),
      placement_(Place(options)),
      pool_(NumThreads(options), placement_.compute),
      plan_(PlanFor(
          model.config, store_,
          MakePlanRequest(model.config, options, budget_.limit_bytes(), pool_.num_threads()),
          &schedule_)),
      process_(budget_.Reserve("process", plan_.items.at("process"))),
      page_tables_(budget_.Reserve("page tables", plan_.items.at("page tables"))),
      reader_(OpenReaderOn(placement_.reading, PathsOf(store_), options.read_mode)),
      trunk_(model.config, store_, std::move(schedule_), {plan_.ring_slots, plan_.pinned_bytes},
             kernels_, *reader_, monitor_, budget_),
      experts_(model.config, store_, {plan_.expert_window, plan_.cached_experts}, *reader_,
               monitor_, budget_),
      decoder_(model.config,
               {std::max(plan_.prefill_chunk, options.num_sessions), options.num_sessions,
                pool_.num_threads(), options.latents},
               kernels_, pool_, trunk_, experts_, budget_) {
  if (check_) experts_.CheckWith(&*check_);
  // Mapped pages belong to the page cache, which may drop them and read them again.
  if (options.read_mode != ReadMode::kMapped) Lock(trunk_.pinned_buffer());
}

void Engine::Preload() {
  const uint64_t total = trunk_.PinnedTensorBytes() + experts_.CachedExpertBytes();
  uint64_t done = 0;
  const auto on_read = [&](uint64_t bytes) {
    done += bytes;
    if (options_.on_load) options_.on_load("reading what stays", done, total);
  };
  trunk_.Preload(on_read);
  experts_.Preload(on_read);
}

bool Engine::Lock(Buffer& buffer) {
  locked_.wanted_bytes += buffer.bytes();
  const int error = buffer.TryLock();
  if (error == 0) {
    locked_.locked_bytes += buffer.bytes();
  } else {
    const bool limited = error == ENOMEM || error == EPERM || error == EAGAIN;
    locked_.obstacle = limited ? "the limit on locked memory is lower; raise it with 'ulimit -l'"
                               : std::strerror(error);
  }
  return error == 0;
}

void Engine::Unlock(uint64_t bytes, bool was_locked) {
  locked_.wanted_bytes -= bytes;
  if (was_locked) locked_.locked_bytes -= bytes;
}

void Engine::ThrowIfLost() const {
  const std::string lost = reader_->Lost();
  if (!lost.empty()) throw Error(ErrorCode::kRuntime, lost);
}

EngineStats Engine::stats() const {
  return {trunk_.read_bytes(), experts_.read_bytes(),     experts_.num_requests(),
          experts_.num_hits(), monitor_.waited_seconds(), sweep_times_};
}

size_t Engine::MaxSweepTokens() const {
  return std::max(plan_.prefill_chunk, options_.num_sessions);
}

// If weights were lost during a sweep, its result is discarded.
void Engine::SweepKept(std::span<const SweepItem> items, SweepObserver* observer) {
  ThrowIfLost();
  const SweepClock clock(monitor_, sweep_times_);
  try {
    decoder_.Sweep(items, observer);
  } catch (const Error&) {
    ThrowIfLost();
    throw;
  }
  if (reader_->Lost().empty()) return;
  for (const SweepItem& item : items) item.state->BeginAdvance();  // poisons it
  ThrowIfLost();
}

void Engine::Advance(std::span<const SessionStep> steps, SweepObserver* observer) {
  Sweep(steps, false, observer);
}

void Engine::Sweep(std::span<const SessionStep> steps, bool all_logits, SweepObserver* observer) {
  std::vector<SweepItem> items;
  items.reserve(steps.size());
  for (const SessionStep& step : steps) {
    const LogitsWanted one = step.wants_logits ? LogitsWanted::kLast : LogitsWanted::kNone;
    const bool all = all_logits || step.all_logits != nullptr;
    items.push_back({&step.session->state_, step.tokens, all ? LogitsWanted::kAll : one,
                     step.all_logits != nullptr ? step.all_logits : step.session->logits_data()});
  }
  SweepKept(items, observer);
  for (const SessionStep& step : steps) {
    if (step.all_logits != nullptr && step.wants_logits) {
      const float* last = step.all_logits + (step.tokens.size() - 1) * config().vocab_size;
      std::copy_n(last, config().vocab_size, step.session->logits_data());
    }
    std::vector<TokenId>& tokens = step.session->tokens_;
    tokens.insert(tokens.end(), step.tokens.begin(), step.tokens.end());
    step.session->last_logits_ = step.wants_logits ? step.session->logits_data() : nullptr;
  }
}

uint64_t Engine::Fingerprint() {
  if (!fingerprint_) fingerprint_ = FingerprintOf(config(), store_);
  return *fingerprint_;
}

Session::Session(Engine& engine)
    : engine_(engine),
      state_(engine.config(), engine.options_.context, engine.budget_, engine.options_.latents),
      logits_buffer_(engine.budget_, "logits",
                     (engine.options_.all_logits ? engine.plan_.logit_rows : 1) *
                         engine.config().vocab_size * sizeof(float)) {
  if (engine.num_open_sessions_ == engine.options_.num_sessions) {
    throw Error(ErrorCode::kUsage, "the engine was opened for " +
                                       std::to_string(engine.options_.num_sessions) +
                                       " sessions, and all of them are in use");
  }
  ++engine.num_open_sessions_;
  locked_ = engine.Lock(state_.buffer());
}

Session::~Session() {
  engine_.Unlock(state_.buffer().bytes(), locked_);
  --engine_.num_open_sessions_;
}

void Session::Append(std::span<const TokenId> tokens, Observer* observer, const LogitsSink& sink) {
  THIMBLE_CHECK(sink == nullptr || engine_.options_.all_logits);
  engine_.decoder_.CheckTokens(state_, tokens);
  const size_t width = engine_.plan_.prefill_chunk;
  for (size_t done = 0; done < tokens.size();) {
    const size_t count = std::min(width, tokens.size() - done);
    const size_t position = num_tokens();
    const SessionStep step = {this, tokens.subspan(done, count), done + count == tokens.size()};
    engine_.Sweep({&step, 1}, sink != nullptr, observer);
    done += count;
    if (sink) {
      sink(position, logits_data(), count);
      last_logits_ = logits_data() + (count - 1) * engine_.config().vocab_size;
    }
    if (observer == nullptr) continue;
    observer->OnProgress(done, tokens.size());
    if (done < tokens.size() && !observer->OnPause()) {
      throw Error(ErrorCode::kInterrupted, "stopped after " + std::to_string(done) + " of " +
                                               std::to_string(tokens.size()) + " tokens");
    }
  }
}

void Session::Clear() {
  for (const std::span<std::byte> piece : state_.Pieces(0)) std::ranges::fill(piece, std::byte{0});
  Adopt({}, false);
}

void Session::Adopt(std::vector<TokenId> tokens, bool has_logits) {
  state_.Restore(tokens.size());
  tokens_ = std::move(tokens);
  last_logits_ = has_logits ? logits_data() : nullptr;
}

}  // namespace thimble
