#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/cpu_topology.h"
#include "base/error.h"
#include "engine/planner.h"

namespace thimble {
namespace {

std::vector<std::filesystem::path> PathsOf(const TensorStore& store) {
  std::vector<std::filesystem::path> paths;
  for (const ShardFile& file : store.files()) paths.push_back(file.path);
  return paths;
}

MemoryPlan PlanFor(const ModelConfig& config, const TensorStore& store,
                   const EngineOptions& options, uint64_t budget_bytes, size_t num_threads) {
  const PlanRequest request = MakePlanRequest(config, options, budget_bytes, num_threads);
  return PlanMemory(config, MeasureWeights(config, store), request);
}

}  // namespace

std::unique_ptr<Engine> Engine::Open(const ModelDirectory& model, const EngineOptions& options) {
  if (options.context == 0 || options.context > model.config.max_context) {
    throw Error(ErrorCode::kUsage, "a context of " + std::to_string(options.context) +
                                       " tokens was asked for, expected 1 to the model's " +
                                       std::to_string(model.config.max_context));
  }
  TensorStore store = TensorStore::Open(model.path, model.config);
  return std::unique_ptr<Engine>(new Engine(model, options, std::move(store)));
}

Engine::Engine(const ModelDirectory& model, const EngineOptions& options, TensorStore store)
    : model_(model),
      options_(options),
      kernels_(BestKernels()),
      store_(std::move(store)),
      budget_(options.memory_bytes ? *options.memory_bytes : DefaultMemoryBudget()),
      pool_(options.num_threads != 0 ? options.num_threads : UsablePhysicalCores()),
      plan_(PlanFor(model.config, store_, options, budget_.limit_bytes(), pool_.num_threads())),
      process_(budget_.Reserve("process", plan_.items.at("process"))),
      reader_(OpenReader(PathsOf(store_), options.read_mode)),
      trunk_(model.config, store_, TrunkSchedule::Build(model.config, store_, plan_.block_bytes),
             {plan_.ring_slots, plan_.pinned_bytes}, kernels_, *reader_, monitor_, budget_),
      experts_(model.config, store_, {plan_.expert_window, plan_.cached_experts}, *reader_,
               monitor_, budget_),
      decoder_(model.config,
               {std::max(plan_.prefill_chunk, options.num_sessions), options.num_sessions,
                pool_.num_threads(), options.latents},
               kernels_, pool_, trunk_, experts_, budget_) {}

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
}

void Session::Append(std::span<const TokenId> tokens, Observer* observer, const LogitsSink& sink) {
  THIMBLE_CHECK(sink == nullptr || engine_.options_.all_logits);
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
    engine_.decoder_.Sweep({&item, 1}, observer);
    done += count;
    if (sink) sink(position, logits, count);
    last_logits_ = logits + (sink ? count - 1 : 0) * vocab_size;
    if (observer != nullptr) observer->OnProgress(done, tokens.size());
  }
}

}  // namespace thimble
