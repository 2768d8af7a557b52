#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/byte_size.h"
#include "base/cpu_topology.h"
#include "base/error.h"
#include "memory/process_memory.h"

namespace thimble {
namespace {

// What the process may still grow by outside the budget: pages of code not yet touched, stacks,
// buffers of the standard library.
uint64_t GrowthBytes(size_t num_threads) { return 6 * kMiB + num_threads * 256 * kKiB; }

// Leaves the rest of the machine enough to keep running well.
uint64_t DefaultBudget() {
  const uint64_t free = AvailableMemory() + ReadProcessMemory().rss_bytes;
  const uint64_t reserve = std::max(free / 8, std::min(free / 2, 512 * kMiB));
  return free - reserve;
}

std::vector<std::filesystem::path> PathsOf(const TensorStore& store) {
  std::vector<std::filesystem::path> paths;
  for (const ShardFile& file : store.files()) paths.push_back(file.path);
  return paths;
}

MemoryPlan PlanFor(const ModelConfig& config, const TensorStore& store,
                   const EngineOptions& options, uint64_t budget_bytes, size_t num_threads) {
  const ProcessMemory process = ReadProcessMemory();
  PlanRequest request;
  request.budget_bytes = budget_bytes;
  request.process_bytes = std::max(process.rss_bytes, process.peak_rss_bytes) +
                          GrowthBytes(num_threads + FileReader::kMaxThreads);
  request.sampler_bytes = Sampler::ScratchBytes(config.vocab_size);
  request.context = options.context;
  request.num_sessions = options.num_sessions;
  request.num_threads = num_threads;
  request.prefill_chunk = options.prefill_chunk;
  request.all_logits = options.all_logits;
  return PlanMemory(config, MeasureWeights(config, store), request);
}

}  // namespace

std::unique_ptr<Engine> Engine::Open(const ModelDirectory& model, const EngineOptions& options) {
  TensorStore store = TensorStore::Open(model.path, model.config);
  return std::unique_ptr<Engine>(new Engine(model, options, std::move(store)));
}

Engine::Engine(const ModelDirectory& model, const EngineOptions& options, TensorStore store)
    : model_(model),
      options_(options),
      kernels_(BestKernels()),
      store_(std::move(store)),
      budget_(options.memory_bytes ? *options.memory_bytes : DefaultBudget()),
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
                pool_.num_threads()},
               kernels_, pool_, trunk_, experts_, budget_) {}

EngineStats Engine::stats() const {
  return {trunk_.read_bytes(), experts_.read_bytes(), experts_.num_requests(), experts_.num_hits(),
          monitor_.waited_seconds()};
}

Session::Session(Engine& engine)
    : engine_(engine),
      state_(engine.config(), engine.options_.context, engine.budget_),
      logits_buffer_(engine.budget_, "logits",
                     (engine.options_.all_logits ? engine.plan_.logit_rows : 1) *
                         engine.config().vocab_size * sizeof(float)) {}

void Session::Append(std::span<const TokenId> tokens, Observer* observer, const LogitsSink& sink) {
  if (tokens.size() > capacity() - num_tokens()) {
    throw Error(ErrorCode::kUsage, "the context holds " + std::to_string(capacity()) + " tokens, " +
                                       std::to_string(num_tokens()) + " are in use, and " +
                                       std::to_string(tokens.size()) +
                                       " more were given; raise -c or shorten the text");
  }
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
