#include "engine/engine.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/cpu_topology.h"
#include "base/error.h"
#include "engine/planner.h"
#include "io/queue_shape.h"
#include "residency/weight_layout.h"

namespace thimble {
namespace {

std::vector<std::filesystem::path> PathsOf(const TensorStore& store) {
  std::vector<std::filesystem::path> paths;
  for (const ShardFile& file : store.files()) paths.push_back(file.path);
  return paths;
}

// A plan, and the trunk's schedule in the blocks that it chose.
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

uint64_t ItemOf(const MemoryPlan& plan, const char* name) {
  const auto item = plan.items.find(name);
  return item == plan.items.end() ? 0 : item->second;
}

// Direct reads are measured first where the budget has room for it now, before the weights take it.
std::unique_ptr<FileReader> OpenReaderWithin(MemoryBudget& budget,
                                             const std::vector<std::filesystem::path>& paths,
                                             ReadMode mode) {
  const bool has_room = budget.limit_bytes() - budget.used_bytes() >= kMeasureBytes;
  Buffer scratch(budget, "measurement of the drive", has_room ? kMeasureBytes : 0);
  return OpenReader(paths, mode, {scratch.data(), scratch.bytes()});
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
      budget_(options.memory_bytes ? *options.memory_bytes : DefaultMemoryBudget()),
      pool_(options.num_threads != 0 ? options.num_threads : UsablePhysicalCores()),
      plan_(PlanFor(
          model.config, store_,
          MakePlanRequest(model.config, options, budget_.limit_bytes(), pool_.num_threads()),
          &schedule_)),
      process_(budget_.Reserve("process", plan_.items.at("process"))),
      page_tables_(budget_.Reserve("page tables", ItemOf(plan_, "page tables"))),
      reader_(OpenReaderWithin(budget_, PathsOf(store_), options.read_mode)),
      trunk_(model.config, store_, std::move(schedule_), {plan_.ring_slots, plan_.pinned_bytes},
             kernels_, *reader_, monitor_, budget_),
      experts_(model.config, store_, {plan_.expert_window, plan_.cached_experts}, *reader_,
               monitor_, budget_),
      decoder_(model.config,
               {std::max(plan_.prefill_chunk, options.num_sessions), options.num_sessions,
                pool_.num_threads(), options.latents},
               kernels_, pool_, trunk_, experts_, budget_) {
  if (check_) experts_.CheckWith(&*check_);
  // Mapped pages are the page cache's: it may drop them, and finds them again in the file.
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
  return {trunk_.read_bytes(), experts_.read_bytes(), experts_.num_requests(), experts_.num_hits(),
          monitor_.waited_seconds()};
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

// A sweep over weights that were lost while it ran does not count.
void Session::Sweep(const SweepItem& item, Observer* observer) {
  try {
    engine_.decoder_.Sweep({&item, 1}, observer);
  } catch (const Error&) {
    engine_.ThrowIfLost();
    throw;
  }
  if (engine_.reader_->Lost().empty()) return;
  state_.BeginAdvance();  // poisons it
  engine_.ThrowIfLost();
}

void Session::Append(std::span<const TokenId> tokens, Observer* observer, const LogitsSink& sink) {
  THIMBLE_CHECK(sink == nullptr || engine_.options_.all_logits);
  engine_.ThrowIfLost();
  engine_.decoder_.CheckTokens(state_, tokens);
  auto* logits = reinterpret_cast<float*>(logits_buffer_.data());
  const size_t vocab_size = engine_.config().vocab_size;
  const size_t width = engine_.plan_.prefill_chunk;
  for (size_t done = 0; done < tokens.size();) {
    const size_t count = std::min(width, tokens.size() - done);
    const size_t position = num_tokens();
    SweepItem item = {&state_, tokens.subspan(done, count), LogitsWanted::kNone, logits};
    if (sink) {
      item.wanted = LogitsWanted::kAll;
    } else if (done + count == tokens.size()) {
      item.wanted = LogitsWanted::kLast;
    }
    Sweep(item, observer);
    done += count;
    if (sink) sink(position, logits, count);
    last_logits_ = logits + (sink ? count - 1 : 0) * vocab_size;
    if (observer != nullptr) observer->OnProgress(done, tokens.size());
  }
}

}  // namespace thimble
