#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/error.h"
#include "codec/weight_matrix.h"
#include "format/model_config.h"
#include "format/tensor_store.h"
#include "kernels/latents.h"
#include "residency/weight_layout.h"

namespace thimble {

/// Sizes of a model's parts on disk, which a plan needs in addition to the configuration.
struct WeightSizes {
  uint64_t block_bytes = 0;           // the block size that suits the drive and the trunk
  uint64_t min_block_bytes = 0;       // the smallest block size that works
  uint64_t trunk_bytes = 0;           // all of the trunk, aligned, in blocks of block_bytes
  uint64_t schedule_bytes = 0;        // the schedule of these blocks
  size_t num_tensors = 0;             // of the trunk
  uint64_t expert_slot_bytes = 0;     // one expert, aligned, and its slot's bookkeeping
  uint64_t expert_scratch_bytes = 0;  // to decode one
  uint64_t num_experts = 0;           // over all layers

  /// Weights of one format, and the bytes in which they are stored.
  struct Part {
    uint64_t bytes = 0;
    uint64_t weights = 0;
  };
  using Parts = std::array<Part, kNumWeightFormats>;  // [WeightFormat]
  Parts layer_parts = {};                             // of layer_bytes
  Parts head_parts = {};                              // of head_bytes

  // What is read, without alignment.
  uint64_t layer_bytes = 0;          // of the trunk inside the layers
  uint64_t head_bytes = 0;           // of the trunk after them; read only by sweeps with logits
  uint64_t stored_expert_bytes = 0;  // of one expert, on average

  uint64_t expert_bytes = 0;  // of one expert in memory

  /// An expert's size on disk relative to its size in memory; 1 if the model has no experts.
  double StoredExpertShare() const {
    return expert_bytes == 0
               ? 1
               : static_cast<double>(stored_expert_bytes) / static_cast<double>(expert_bytes);
  }
};
/// Builds the trunk's schedule in blocks of block_bytes and moves it to `schedule` unless that is
/// null.
WeightSizes MeasureWeights(const ModelConfig& config, const WeightLayout& layout,
                           TrunkSchedule* schedule = nullptr);
inline WeightSizes MeasureWeights(const ModelConfig& config, const TensorStore& store) {
  return MeasureWeights(config, LayOutWeights(config, store));
}

/// The input of a plan.
struct PlanRequest {
  uint64_t budget_bytes = 0;
  // Already in use: code, libraries, stacks, tokenizer, table of tensors.
  uint64_t process_bytes = 0;
  uint64_t peak_bytes = 0;     // the process's peak so far, a lower bound on the budget
  uint64_t sampler_bytes = 0;  // of each session
  size_t context = 0;          // tokens that each session can hold
  size_t num_sessions = 1;
  uint64_t snapshot_bytes = 0;  // for snapshots of sessions
  size_t num_threads = 1;
  // Absent: chosen by the plan. With all_logits reduced until their logits fit.
  std::optional<size_t> prefill_chunk;
  bool all_logits = false;  // logits of every prompt position are wanted
  LatentFormat latents = LatentFormat::kF32;
};

/// The use of memory, decided once, when a model is opened, from sizes alone.
struct MemoryPlan {
  size_t prefill_chunk = 1;  // tokens of one sweep
  size_t logit_rows = 1;     // of one session in one sweep
  uint64_t block_bytes = 0;  // of the trunk's ring
  size_t ring_slots = 0;
  uint64_t pinned_bytes = 0;              // of the trunk
  size_t expert_window = 1;               // slots for experts in passing
  size_t cached_experts = 0;              // slots for experts that stay
  std::map<std::string, uint64_t> items;  // every line, in bytes

  uint64_t TotalBytes() const;
};

/// Error(kOverBudget) that also gives the smallest budget that works, in bytes.
class OverBudgetError : public Error {
 public:
  OverBudgetError(uint64_t smallest_budget, const std::string& message)
      : Error(ErrorCode::kOverBudget, message), smallest_budget_(smallest_budget) {}
  uint64_t smallest_budget() const noexcept { return smallest_budget_; }

 private:
  uint64_t smallest_budget_;
};

/// The best plan within the budget, or OverBudgetError with the ledger of the smallest one. What
/// exceeds the floor goes to a window of experts and to larger blocks, so that reading and
/// computing overlap; then, up to an eighth of the budget, to a wider prefill; then to the trunk;
/// then to experts: a byte of trunk is read every token, an expert only now and then.
MemoryPlan PlanMemory(const ModelConfig& config, const WeightSizes& sizes,
                      const PlanRequest& request);

}  // namespace thimble
