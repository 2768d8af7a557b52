#include "engine/planner.h"

#include <algorithm>

#include "base/byte_size.h"
#include "memory/process_memory.h"

namespace thimble {
namespace {

// Allowance for growth of the process outside the budget: code pages not yet touched, stacks,
// buffers of the standard library.
uint64_t GrowthBytes(size_t num_threads) { return 6 * kMiB + num_threads * 256 * kKiB; }

// Opening a model frees much of what it took.
ProcessMemory TrimmedProcessMemory() {
  ReturnFreedMemory();
  return ReadProcessMemory();
}

}  // namespace

uint64_t DefaultMemoryBudget(uint64_t free_bytes) {
  return free_bytes - std::max(free_bytes / 8, std::min(free_bytes / 2, 512 * kMiB));
}

uint64_t DefaultMemoryBudget() {
  return DefaultMemoryBudget(AvailableMemory() + ReadProcessMemory().rss_bytes);
}

PlanRequest MakePlanRequest(const ModelConfig& config, const EngineOptions& options,
                            uint64_t budget_bytes, size_t num_threads) {
  const ProcessMemory process = options.process ? *options.process : TrimmedProcessMemory();
  PlanRequest request;
  request.budget_bytes = budget_bytes;
  request.process_bytes = process.rss_bytes + GrowthBytes(num_threads + FileReader::kMaxThreads) +
                          options.program_bytes;
  request.peak_bytes = process.peak_rss_bytes;
  request.sampler_bytes = Sampler::ScratchBytes(config.vocab_size);
  request.context = options.context;
  request.num_sessions = options.num_sessions;
  request.snapshot_bytes = options.snapshot_bytes;
  request.num_threads = num_threads;
  request.prefill_chunk = options.prefill_chunk;
  request.all_logits = options.all_logits;
  request.latents = options.latents;
  return request;
}

uint64_t UnloadedBytes(const ModelConfig& config) {
  // Its text and its entries in the tokenizer's tables.
  constexpr uint64_t kTokenBytes = 48;
  // Its table entries, and heap that opening a download cannot return; a container leaves less.
  constexpr uint64_t kExpertBytes = sizeof(uint64_t) * (kExpertTensors + 1) + 48;
  uint64_t experts = 0;
  for (const LayerSpec& spec : config.layers) {
    if (spec.feed_forward == FeedForwardKind::kMoe) experts += config.moe.num_experts;
  }
  return config.vocab_size * kTokenBytes + experts * kExpertBytes;
}

}  // namespace thimble
