#include "outlook/plan_outlook.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/cpu_topology.h"
#include "base/error.h"
#include "outlook/embedded_model.h"

namespace thimble {
namespace {

constexpr double kGigabyte = 1e9;

SweepKind DecodeSweep(Routing routing) {
  return {.num_tokens = 1, .with_head = true, .routing = routing};
}

// Only a prompt's last chunk goes on to the head.
SweepKind PrefillSweep(const MemoryPlan& plan) {
  return {.num_tokens = plan.prefill_chunk, .with_head = false, .routing = Routing::kUniform};
}

void ChooseDrive(const std::optional<double>& given, Outlook* outlook) {
  double gigabytes = given.value_or(kAssumedDrive);
  if (given) {
    outlook->drive_source = "as given";
  } else if (outlook->model.files.empty()) {
    outlook->drive_source = "assumed; measure yours with 'thimble doctor', then give --drive";
  } else {
    const DriveProbe probe = MeasureDrive(outlook->model.files);
    if (probe.bytes_per_s) gigabytes = *probe.bytes_per_s / kGigabyte;
    outlook->drive_source = probe.bytes_per_s
                                ? "measured by direct reads of the model's files"
                                : fmt::format("assumed, not measured: {}", probe.obstacle);
  }
  outlook->rates.drive_bytes_per_s = gigabytes * kGigabyte;
}

BudgetChoice Choose(const Outlook& outlook, double gigabytes) {
  const ModelConfig& config = outlook.model.config;
  BudgetChoice choice = {gigabytes, std::nullopt, {}};
  PlanRequest request = outlook.request;
  request.budget_bytes = static_cast<uint64_t>(std::llround(gigabytes * kGigabyte));
  try {
    const MemoryPlan plan = PlanMemory(config, outlook.model.sizes, request);
    choice.reads = ExpectedReads(config, outlook.model.sizes, plan, {});
    for (const double drive : kPlanDrives) {
      MachineRates rates = outlook.rates;
      rates.drive_bytes_per_s = drive * kGigabyte;
      choice.seconds.push_back(SweepSeconds(config, outlook.model.sizes, plan, rates, {}));
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOverBudget) throw;
  }
  return choice;
}

PlannedModel OpenModel(const OutlookRequest& request) {
  return request.arch.empty() ? PlannedModel::FromDirectory(ModelOrEmbedded(request.model))
                              : PlannedModel::Published(request.arch);
}

}  // namespace

double Outlook::TokenSeconds(Routing routing) const {
  return SweepSeconds(model.config, model.sizes, plan, rates, DecodeSweep(routing));
}

double Outlook::PrefillSeconds() const {
  return SweepSeconds(model.config, model.sizes, plan, rates, PrefillSweep(plan)) /
         static_cast<double>(plan.prefill_chunk);
}

Outlook LookAhead(const OutlookRequest& request) {
  Outlook outlook;
  outlook.model = OpenModel(request);
  const ModelConfig& config = outlook.model.config;
  const size_t context =
      request.context.value_or(std::min(kDefaultPlanContext, config.max_context));
  if (context > config.max_context) {
    throw Error(ErrorCode::kUsage, fmt::format("-c {} is more than the model's {} tokens", context,
                                               config.max_context));
  }
  const size_t cores = request.cores != 0 ? request.cores : UsablePhysicalCores();
  const uint64_t budget = request.memory_bytes ? *request.memory_bytes : DefaultMemoryBudget();
  EngineOptions planned;
  planned.context = context;
  planned.latents = request.latents;
  outlook.request = outlook.model.Request(planned, budget, cores);
  outlook.plan = PlanMemory(config, outlook.model.sizes, outlook.request);
  outlook.rates = MeasureCompute(FormatsOf(config, outlook.model.sizes), cores);
  ChooseDrive(request.drive, &outlook);

  const WeightSizes& sizes = outlook.model.sizes;
  MemoryPlan bare;
  bare.ring_slots = 2;
  outlook.cold = ExpectedReads(config, sizes, bare, DecodeSweep(Routing::kUniform));
  outlook.decode = ExpectedReads(config, sizes, outlook.plan, DecodeSweep(Routing::kUniform));
  outlook.local = ExpectedReads(config, sizes, outlook.plan, DecodeSweep(Routing::kLocal));
  outlook.prefill = ExpectedReads(config, sizes, outlook.plan, PrefillSweep(outlook.plan));
  for (const double gigabytes : kPlanBudgets) {
    outlook.choices.push_back(Choose(outlook, gigabytes));
  }
  return outlook;
}

}  // namespace thimble
