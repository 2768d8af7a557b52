#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/byte_size.h"
#include "base/thread_pool.h"
#include "model/decoder.h"
#include "residency/checkpoint.h"
#include "residency/expert_cache.h"
#include "residency/sweep_clock.h"
#include "residency/trunk_stream.h"

namespace thimble {

/// A decoder over streamed weights, of which a third of the trunk and a few experts stay.
class StreamedModel {
 public:
  static constexpr size_t kContext = 16;

  StreamedModel(const Checkpoint& checkpoint, BlockReader& reader)
      : config_(checkpoint.config()),
        schedule_(TrunkSchedule::Build(config_, checkpoint.store(), 0)),
        trunk_(config_, checkpoint.store(), schedule_, {2, schedule_.bytes / 3}, BestKernels(),
               reader, monitor_, budget_),
        experts_(config_, checkpoint.store(), {2, 5}, reader, monitor_, budget_),
        decoder_(config_, {kContext, 1, 2}, BestKernels(), pool_, trunk_, experts_, budget_) {}

  StateCache NewState() { return StateCache(config_, kContext, budget_); }

  /// The logits of the last of `tokens`.
  std::vector<float> Advance(StateCache& state, std::span<const uint32_t> tokens) {
    std::vector<float> logits(config_.vocab_size);
    const SweepItem item = {&state, tokens, LogitsWanted::kLast, logits.data()};
    const SweepClock clock(monitor_, times_);
    decoder_.Sweep({&item, 1}, nullptr);
    return logits;
  }

  const SweepTimes& times() const { return times_; }

 private:
  const ModelConfig& config_;
  const TrunkSchedule schedule_;
  MemoryBudget budget_{kGiB};
  ReadMonitor monitor_;
  SweepTimes times_;
  ThreadPool pool_{2};
  TrunkStream trunk_;
  ExpertCache experts_;
  Decoder decoder_;
};

}  // namespace thimble
