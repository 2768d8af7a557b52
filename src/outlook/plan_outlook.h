#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner.h"
#include "measure/compute_rates.h"
#include "outlook/planned_model.h"

namespace thimble {

inline constexpr size_t kDefaultPlanContext = 4096;

/// What a plan is asked for.
struct OutlookRequest {
  std::filesystem::path model;  // empty, and no arch: the embedded model
  std::string arch;             // a published model instead
  std::optional<uint64_t> memory_bytes;
  std::optional<double> drive;  // GB/s
  size_t cores = 0;             // 0: the physical ones that this process may use
  // Absent: kDefaultPlanContext, or what the model can hold where that is less.
  std::optional<size_t> context;
  LatentFormat latents = LatentFormat::kF32;
};

inline constexpr double kAssumedDrive = 3.5;                                            // GB/s
inline constexpr std::array<double, 7> kPlanBudgets = {1.5, 3, 8.24, 16, 32, 64, 128};  // GB
inline constexpr std::array<double, 4> kPlanDrives = {1, 3.5, 7, 12};                   // GB/s

/// What one budget would bring; no reads and no seconds where it is too small.
struct BudgetChoice {
  double gigabytes;
  std::optional<SweepReads> reads;
  std::vector<double> seconds;  // a token, for each of kPlanDrives
};

/// What is to be expected of a model on this machine. Nothing is computed but the rates of the
/// machine, which are measured.
struct Outlook {
  PlannedModel model;
  PlanRequest request;
  MemoryPlan plan;
  MachineRates rates;
  std::string drive_source;  // where the drive's rate comes from
  SweepReads cold;           // nothing resident
  SweepReads decode;         // with this plan
  SweepReads local;          // the same, with local routing
  SweepReads prefill;        // of a chunk
  std::vector<BudgetChoice> choices;

  double TokenSeconds(Routing routing) const;
  double ReadSeconds() const { return decode.Total() / rates.drive_bytes_per_s; }
  double CoreSeconds() const { return ComputeSeconds(model.config, model.sizes, rates, {}); }
  /// Of one token of a prompt.
  double PrefillSeconds() const;
};

/// Opens the model, measures the machine, and looks ahead. Error(kUsage) for an unknown model or a
/// context beyond the model's, Error(kBadModel), Error(kOverBudget).
Outlook LookAhead(const OutlookRequest& request);

}  // namespace thimble
