#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/weight_matrix.h"
#include "format/model_config.h"
#include "residency/memory_plan.h"

namespace thimble {

/// The rate at which all cores together multiply by weights of one format.
struct WeightRate {
  double bytes_per_s = 0;  // of weights, with one token: what streams through the cores
  double flops = 0;        // a second, with many tokens: a multiplication and an addition are two
};

/// Measured or assumed rates of a machine.
struct MachineRates {
  double drive_bytes_per_s = 0;
  std::array<WeightRate, kNumWeightFormats> products = {};  // [WeightFormat]; 0: not measured

  WeightRate& Of(WeightFormat format) { return products[static_cast<size_t>(format)]; }
  const WeightRate& Of(WeightFormat format) const { return products[static_cast<size_t>(format)]; }
};

/// The formats that a model's weights are stored in, whose rates a forecast needs.
std::vector<WeightFormat> FormatsOf(const ModelConfig& config, const WeightSizes& sizes);

/// Expected reads of one sweep, in bytes, by part.
struct SweepReads {
  double layers = 0;     // the trunk inside the layers, less what is pinned
  double head = 0;       // the trunk after the layers, less what is pinned
  double experts = 0;    // the chosen experts that are not cached
  double embedding = 0;  // a row for each token

  double Total() const { return layers + head + experts + embedding; }
};

/// How the router is assumed to choose.
enum class Routing : uint8_t {
  kUniform,  // every expert as likely as any other, whatever came before
  kLocal,    // of a token's experts kRepeatedExperts are those of the token before it, as others
             // report of Kimi K3; the rest as above
};
inline constexpr double kRepeatedExperts = 0.3;

/// The share of a token's experts that the plan's cache is expected to hold.
double ExpectedHitRate(const ModelConfig& config, const MemoryPlan& plan, Routing routing);

/// Distinct experts that a layer is expected to need for `num_tokens` tokens under uniform routing.
double DistinctExperts(const MoeConfig& moe, size_t num_tokens);

/// What one sweep is for.
struct SweepKind {
  size_t num_tokens = 1;
  bool with_head = true;
  Routing routing = Routing::kUniform;
};

/// The reads of a sweep: the trunk once, each distinct expert once.
SweepReads ExpectedReads(const ModelConfig& config, const WeightSizes& sizes,
                         const MemoryPlan& plan, const SweepKind& sweep);

/// The time that the matrix products of a sweep take, when every weight is there: for the trunk and
/// for the experts the longer of passing each weight once and of the arithmetic. Leaves out the
/// recurrence and attention over the context.
double ComputeSeconds(const ModelConfig& config, const WeightSizes& sizes,
                      const MachineRates& rates, const SweepKind& sweep);

/// The time of a sweep: reads and arithmetic overlap, so the longer of the two.
double SweepSeconds(const ModelConfig& config, const WeightSizes& sizes, const MemoryPlan& plan,
                    const MachineRates& rates, const SweepKind& sweep);

/// Bytes of session state that each token of context adds.
uint64_t ContextTokenBytes(const ModelConfig& config, LatentFormat latents = LatentFormat::kF32);

}  // namespace thimble
