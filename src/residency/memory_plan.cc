#include "residency/memory_plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/byte_size.h"
#include "base/checked_math.h"
#include "base/error.h"
#include "memory/memory_budget.h"
#include "model/decoder.h"
#include "residency/expert_cache.h"
#include "residency/trunk_schedule.h"
#include "residency/trunk_stream.h"

namespace thimble {
namespace {

// Widest prompt chunk: beyond it a layer's weights serve so many tokens that reading them hardly
// matters.
constexpr size_t kMaxChunk = 2048;
// Logits of every position are large (655 KB a token for Kimi K3); this much holds enough of them.
constexpr uint64_t kMaxLogitBytes = 64 * kMiB;
// The ring's blocks: large enough for the drive's full rate, small beside the floor.
constexpr uint64_t kMaxBlockBytes = 32 * kMiB;
constexpr uint64_t kMinBlockBytes = 64 * kKiB;
// Each block costs a few hundred bytes of bookkeeping: this keeps that to about 2 MB.
constexpr uint64_t kMostBlocks = 8192;
constexpr size_t kRingSlots = 4;

uint64_t LogitBytes(const ModelConfig& config, size_t rows) {
  return rows * config.vocab_size * sizeof(float);
}

uint64_t ScheduleBytes(const WeightSizes& sizes, uint64_t block_bytes) {
  if (block_bytes == sizes.block_bytes) return sizes.schedule_bytes;
  return TrunkSchedule::MostTableBytes(sizes.num_tensors, sizes.layer_bytes + sizes.head_bytes,
                                       block_bytes);
}

// Tables for `bytes` of pages of 4 KiB: eight bytes a page, in whole pages, and their upper levels.
constexpr uint64_t kPageTableShare = 512;
constexpr uint64_t kUpperTables = 64 * kKiB;
uint64_t PageTableBytes(uint64_t bytes) { return bytes / kPageTableShare + kUpperTables; }

// The plan's fixed parts for one choice of their sizes: nothing pinned, no expert cached.
MemoryPlan LayFloor(const ModelConfig& config, const WeightSizes& sizes, const PlanRequest& request,
                    MemoryPlan plan) {
  plan.logit_rows = 1;
  if (request.all_logits) {
    const uint64_t rows = kMaxLogitBytes / LogitBytes(config, 1);
    plan.prefill_chunk = std::min(plan.prefill_chunk, std::max<size_t>(1, rows));
    plan.logit_rows = plan.prefill_chunk;
  }
  const DecoderLimits limits = {std::max(plan.prefill_chunk, request.num_sessions),
                                request.num_sessions, request.num_threads, request.latents};
  plan.items = {
      {"process", request.process_bytes},
      {"session state",
       request.num_sessions * StateCache::Bytes(config, request.context, request.latents)},
      {"workspace", Decoder::WorkspaceBytes(config, limits)},
      {"logits", request.num_sessions * LogitBytes(config, plan.logit_rows)},
      {"sampler", request.num_sessions * request.sampler_bytes},
      {"embedding rows", TrunkStream::EmbeddingBytes(config)},
      {"trunk ring", plan.ring_slots * plan.block_bytes},
      {"expert slots", plan.expert_window * sizes.expert_slot_bytes + sizes.expert_scratch_bytes},
      {"expert table", ExpertCache::TableBytes(config)},
      {"trunk schedule", ScheduleBytes(sizes, plan.block_bytes)},
  };
  if (request.snapshot_bytes > 0) plan.items["snapshots"] = request.snapshot_bytes;
  return plan;
}

MemoryPlan SmallestPlan(const ModelConfig& config, const WeightSizes& sizes,
                        const PlanRequest& request) {
  MemoryPlan plan;
  plan.prefill_chunk = request.prefill_chunk.value_or(1);
  plan.block_bytes = sizes.min_block_bytes;
  plan.ring_slots = 2;
  plan.expert_window = 1;
  return LayFloor(config, sizes, request, plan);
}

[[noreturn]] void Refuse(const MemoryPlan& smallest, uint64_t budget) {
  // Rounded up beyond the variation between two starts, so that the figure works when typed back.
  constexpr uint64_t kVariation = kMB / 2;
  const uint64_t needed = CeilDiv(smallest.TotalBytes() + kVariation, kMB);
  throw OverBudgetError(needed * kMB,
                        "the memory budget of " + FormatBytes(budget) +
                            " is too small for this model; the least that works is --memory " +
                            std::to_string(needed) + "M:\n" + FormatLedger(smallest.items) +
                            "Grant that much, or ask for a shorter context with -c.");
}

// Enlarges one part after another while the whole stays within its share of the budget.
MemoryPlan Widen(const ModelConfig& config, const WeightSizes& sizes, const PlanRequest& request,
                 MemoryPlan plan) {
  const auto accept = [&](const MemoryPlan& candidate, uint64_t limit) {
    const MemoryPlan laid = LayFloor(config, sizes, request, candidate);
    if (laid.TotalBytes() > limit) return false;
    plan = laid;
    return true;
  };
  const uint64_t budget = request.budget_bytes;
  // Overlap first: several experts, and larger blocks.
  for (const size_t window : {std::max<size_t>(1, config.moe.top_k), size_t{4}, size_t{2}}) {
    MemoryPlan wider = plan;
    wider.expert_window = std::min(window, std::max<size_t>(1, config.moe.num_experts));
    if (accept(wider, budget)) break;
  }
  for (uint64_t block = sizes.block_bytes; block > plan.block_bytes; block /= 2) {
    MemoryPlan wider = plan;
    wider.block_bytes = RoundUp<uint64_t>(block, BlockReader::kAlignment);
    wider.ring_slots = kRingSlots;
    if (accept(wider, budget)) break;
  }
  if (request.prefill_chunk) return plan;
  // A prompt gains from width, but every later token gains from resident weights: an eighth of the
  // budget.
  const uint64_t limit = std::min(budget, plan.TotalBytes() + budget / 8);
  for (size_t chunk = std::min(kMaxChunk, std::max<size_t>(1, request.context)); chunk > 1;
       chunk /= 2) {
    MemoryPlan wider = plan;
    wider.prefill_chunk = chunk;
    if (accept(wider, limit)) break;
  }
  return plan;
}

// Gives the rest to the trunk, then to experts.
void Fill(const WeightSizes& sizes, uint64_t budget, MemoryPlan* plan) {
  uint64_t left = budget - plan->TotalBytes();
  const uint64_t ring = plan->items["trunk ring"];
  const bool whole_blocks = plan->block_bytes == sizes.block_bytes;
  if (whole_blocks && left + ring >= sizes.trunk_bytes) {
    plan->ring_slots = 0;
    plan->items["trunk ring"] = 0;
    left += ring;
  }
  plan->pinned_bytes = std::min(left, sizes.trunk_bytes);
  left -= plan->pinned_bytes;
  plan->items["pinned trunk"] = plan->pinned_bytes;
  if (sizes.expert_slot_bytes == 0) return;
  const uint64_t slots = std::min(left / sizes.expert_slot_bytes, sizes.num_experts);
  plan->cached_experts = static_cast<size_t>(slots);
  plan->items["expert slots"] += slots * sizes.expert_slot_bytes;
}

}  // namespace

WeightSizes MeasureWeights(const ModelConfig& config, const WeightLayout& layout,
                           TrunkSchedule* schedule) {
  WeightSizes sizes;
  sizes.num_tensors = layout.trunk.size();
  for (const TrunkEntry& entry : layout.trunk) {
    const TensorExtent& extent = entry.extent;
    const bool in_head = entry.tensor.layer == kNoLayer;
    WeightSizes::Parts& parts = in_head ? sizes.head_parts : sizes.layer_parts;
    WeightSizes::Part& part = parts[static_cast<size_t>(TrunkFormat(extent))];
    part.bytes += extent.Bytes();
    part.weights += uint64_t{extent.rows} * extent.cols;
    (in_head ? sizes.head_bytes : sizes.layer_bytes) += extent.Bytes();
  }
  const uint64_t tensors = sizes.layer_bytes + sizes.head_bytes;
  sizes.min_block_bytes =
      std::max(TrunkSchedule::MinBlockBytes(layout.trunk),
               RoundUp<uint64_t>(tensors / kMostBlocks, BlockReader::kAlignment));
  // At least a few dozen blocks, so that a small model streams like a large one.
  const uint64_t wanted = std::clamp(tensors / 32, kMinBlockBytes, kMaxBlockBytes);
  sizes.block_bytes =
      std::max(RoundUp<uint64_t>(wanted, BlockReader::kAlignment), sizes.min_block_bytes);
  TrunkSchedule built = TrunkSchedule::Build(layout.trunk, sizes.block_bytes);
  sizes.trunk_bytes = built.bytes;
  sizes.schedule_bytes = built.TableBytes();
  if (schedule != nullptr) *schedule = std::move(built);
  sizes.expert_slot_bytes = layout.expert_slot_bytes;
  if (sizes.expert_slot_bytes != 0) sizes.expert_slot_bytes += ExpertCache::SlotTableBytes();
  sizes.expert_scratch_bytes = layout.expert_scratch_bytes;
  sizes.expert_bytes = layout.expert_bytes;
  sizes.stored_expert_bytes = layout.stored_expert_bytes;
  for (const LayerSpec& spec : config.layers) {
    if (spec.feed_forward == FeedForwardKind::kMoe) sizes.num_experts += config.moe.num_experts;
  }
  return sizes;
}

uint64_t MemoryPlan::TotalBytes() const {
  uint64_t total = 0;
  for (const auto& [name, bytes] : items) total += bytes;
  return total;
}

MemoryPlan PlanMemory(const ModelConfig& config, const WeightSizes& sizes,
                      const PlanRequest& request) {
  MemoryPlan smallest = SmallestPlan(config, sizes, request);
  const uint64_t needed = smallest.TotalBytes();
  const uint64_t least = std::max(needed + PageTableBytes(needed), request.peak_bytes);
  if (least > request.budget_bytes) {
    smallest.items["page tables"] = PageTableBytes(needed);
    const uint64_t opening = least - smallest.TotalBytes();
    if (opening > 0) smallest.items["opening the model"] = opening;
    Refuse(smallest, request.budget_bytes);
  }
  // The x for which x + PageTableBytes(x) is the budget.
  PlanRequest rest = request;
  rest.budget_bytes = std::max(
      needed, (request.budget_bytes - kUpperTables) / (kPageTableShare + 1) * kPageTableShare);
  MemoryPlan plan = Widen(config, sizes, rest, smallest);
  Fill(sizes, rest.budget_bytes, &plan);
  plan.items["page tables"] = PageTableBytes(plan.TotalBytes());
  return plan;
}

}  // namespace thimble
