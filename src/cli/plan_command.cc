#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/byte_size.h"
#include "base/cpu_topology.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/planned_model.h"
#include "memory/memory_budget.h"

namespace thimble::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kAssumedDrive = 3.5;  // GB/s: a common NVMe drive
constexpr size_t kDefaultContext = 4096;
constexpr size_t kMaxCores = 1024;
constexpr double kGigabyte = 1e9;
constexpr std::array<double, 7> kBudgets = {1.5, 3, 8.24, 16, 32, 64, 128};  // GB
constexpr std::array<double, 4> kDrives = {1, 3.5, 7, 12};                   // GB/s
constexpr std::array kLatentFormats = {LatentFormat::kF32, LatentFormat::kBF16, LatentFormat::kFP8};
constexpr std::array<std::pair<const char*, size_t>, 3> kContexts = {
    {{"8K", 8192}, {"128K", 131072}, {"1M", 1048576}}};

struct PlanOptions {
  std::filesystem::path model;
  std::string arch;
  std::string memory;
  std::optional<double> drive;  // GB/s
  size_t cores = 0;
  size_t context = kDefaultContext;
  LatentFormat latents = LatentFormat::kF32;
  bool json = false;
};

// One row of the table of budgets; no seconds where the budget is too small.
struct Choice {
  double gigabytes;
  std::optional<SweepReads> reads;
  std::vector<double> seconds;  // [kDrives]
};

struct Outlook {
  PlannedModel model;
  PlanRequest request;
  MemoryPlan plan;
  MachineRates rates;
  std::string drive_source;
  SweepReads cold;     // nothing resident
  SweepReads decode;   // with this plan
  SweepReads local;    // the same, with local routing
  SweepReads prefill;  // of a chunk
  std::vector<Choice> choices;

  double Seconds(const SweepKind& sweep) const {
    return SweepSeconds(model.config, model.sizes, plan, rates, sweep);
  }
  double PrefillSeconds() const {
    return Seconds(PrefillSweep()) / static_cast<double>(plan.prefill_chunk);
  }
  double ReadSeconds() const { return decode.Total() / rates.drive_bytes_per_s; }
  double CoreSeconds() const { return ComputeSeconds(model.config, model.sizes, rates, {}); }
  // Only a prompt's last chunk goes on to the head.
  SweepKind PrefillSweep() const {
    return {.num_tokens = plan.prefill_chunk, .with_head = false, .routing = Routing::kUniform};
  }
};

constexpr SweepKind kLocalSweep = {.num_tokens = 1, .with_head = true, .routing = Routing::kLocal};

void ChooseDrive(const std::optional<double>& given, Outlook* outlook) {
  double gigabytes = given.value_or(kAssumedDrive);
  if (given) {
    outlook->drive_source = "as given";
  } else if (outlook->model.shards.empty()) {
    outlook->drive_source = "assumed; measure yours with 'thimble doctor', then give --drive";
  } else {
    const DriveProbe probe = MeasureDrive(outlook->model.shards);
    if (probe.bytes_per_s) gigabytes = *probe.bytes_per_s / kGigabyte;
    outlook->drive_source = probe.bytes_per_s
                                ? "measured by direct reads of the model's files"
                                : fmt::format("assumed, not measured: {}", probe.obstacle);
  }
  outlook->rates.drive_bytes_per_s = gigabytes * kGigabyte;
}

std::vector<Choice> Choices(const Outlook& outlook) {
  const ModelConfig& config = outlook.model.config;
  std::vector<Choice> choices;
  for (const double gigabytes : kBudgets) {
    Choice choice = {gigabytes, std::nullopt, {}};
    PlanRequest request = outlook.request;
    request.budget_bytes = static_cast<uint64_t>(std::llround(gigabytes * kGigabyte));
    try {
      const MemoryPlan plan = PlanMemory(config, outlook.model.sizes, request);
      choice.reads = ExpectedReads(config, outlook.model.sizes, plan, {});
      for (const double drive : kDrives) {
        MachineRates rates = outlook.rates;
        rates.drive_bytes_per_s = drive * kGigabyte;
        choice.seconds.push_back(SweepSeconds(config, outlook.model.sizes, plan, rates, {}));
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOverBudget) throw;
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

Outlook LookAhead(const PlanOptions& options) {
  Outlook outlook;
  outlook.model = options.arch.empty() ? PlannedModel::FromDirectory(ModelOrEmbedded(options.model))
                                       : PlannedModel::Published(options.arch);
  const ModelConfig& config = outlook.model.config;
  if (options.context > config.max_context) {
    throw Error(ErrorCode::kUsage, fmt::format("-c {} is more than the model's {} tokens",
                                               options.context, config.max_context));
  }
  const size_t cores = options.cores != 0 ? options.cores : UsablePhysicalCores();
  const uint64_t budget =
      options.memory.empty() ? DefaultMemoryBudget() : ParseByteSize(options.memory).value_or(0);
  EngineOptions planned;
  planned.context = options.context;
  planned.latents = options.latents;
  outlook.request = outlook.model.Request(planned, budget, cores);
  outlook.plan = PlanMemory(config, outlook.model.sizes, outlook.request);
  outlook.rates = MeasureCompute(cores);
  ChooseDrive(options.drive, &outlook);

  const WeightSizes& sizes = outlook.model.sizes;
  MemoryPlan bare;
  bare.ring_slots = 2;
  outlook.cold = ExpectedReads(config, sizes, bare, {});
  outlook.decode = ExpectedReads(config, sizes, outlook.plan, {});
  outlook.local = ExpectedReads(config, sizes, outlook.plan, kLocalSweep);
  outlook.prefill = ExpectedReads(config, sizes, outlook.plan, outlook.PrefillSweep());
  outlook.choices = Choices(outlook);
  return outlook;
}

std::vector<std::string> Assumptions(const Outlook& outlook) {
  return {
      "reads and arithmetic overlap fully: the slower of the two sets the pace",
      "uniform routing: every expert is equally likely, so a cache hits by its share of them",
      fmt::format("local routing: {:.0f} % of a token's experts are those of the token before it "
                  "(reported by others, not measured here)",
                  100 * kRepeatedExperts),
      fmt::format("arithmetic: the matrix products alone, at the rates just measured on {} threads "
                  "of this machine; attention over a long context comes on top",
                  outlook.request.num_threads),
      "a prompt's figure is that of a full chunk, in which each distinct expert is read once",
  };
}

// ---- JSON

Json ReadsJson(const SweepReads& reads) {
  return {{"trunk_layers", reads.layers},
          {"output_head", reads.head},
          {"routed_experts", reads.experts},
          {"embedding", reads.embedding},
          {"total", reads.Total()}};
}

Json RateJson(const WeightRate& rate) {
  return {{"bytes_per_s", rate.bytes_per_s}, {"flops", rate.flops}};
}

Json ContextCostJson(const ModelConfig& config, LatentFormat latents) {
  Json json;
  json["bytes_per_token"] = ContextTokenBytes(config, latents);
  for (const auto& [name, tokens] : kContexts) {
    json["total_bytes"][name] = StateCache::Bytes(config, tokens, latents);
  }
  return json;
}

// What a context costs as it is planned, and in every format.
Json ContextJson(const ModelConfig& config, LatentFormat latents) {
  Json json = {{"kv", NameOf(latents)}, {"fixed_bytes", StateCache::Bytes(config, 0)}};
  json.update(ContextCostJson(config, latents));
  for (const LatentFormat format : kLatentFormats) {
    json["by_kv"][NameOf(format)] = ContextCostJson(config, format);
  }
  return json;
}

Json ChoicesJson(const std::vector<Choice>& choices) {
  Json rows = Json::array();
  for (const Choice& choice : choices) {
    Json row = {{"memory_gb", choice.gigabytes}, {"fits", choice.reads.has_value()}};
    if (choice.reads) row["bytes_per_token"] = choice.reads->Total();
    for (size_t i = 0; i < choice.seconds.size(); ++i) {
      row["seconds_per_token"].push_back(
          {{"drive_gb_per_s", kDrives[i]}, {"seconds", choice.seconds[i]}});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json ToJson(const Outlook& outlook) {
  const MemoryPlan& plan = outlook.plan;
  const double seconds = outlook.Seconds({});
  Json json;
  json["model"] = outlook.model.name;
  json["downloaded"] = !outlook.model.shards.empty();
  json["disk_bytes"] = outlook.model.disk_bytes;
  json["memory"] = {{"budget_bytes", outlook.request.budget_bytes},
                    {"ledger", plan.items},
                    {"total_bytes", plan.TotalBytes()},
                    {"pinned_trunk_bytes", plan.pinned_bytes},
                    {"cached_experts", plan.cached_experts},
                    {"experts", outlook.model.sizes.num_experts}};
  json["machine"] = {{"cores", outlook.request.num_threads},
                     {"drive_bytes_per_s", outlook.rates.drive_bytes_per_s},
                     {"drive_source", outlook.drive_source},
                     {"bf16", RateJson(outlook.rates.bf16)},
                     {"mxfp4", RateJson(outlook.rates.mxfp4)}};
  json["bytes_per_token"] = {{"nothing_resident", ReadsJson(outlook.cold)},
                             {"expected", ReadsJson(outlook.decode)},
                             {"local_routing", ReadsJson(outlook.local)}};
  json["seconds_per_token"] = seconds;
  json["tokens_per_s"] = 1 / seconds;
  json["seconds_per_token_local_routing"] = outlook.Seconds(kLocalSweep);
  json["read_seconds_per_token"] = outlook.ReadSeconds();
  json["compute_seconds_per_token"] = outlook.CoreSeconds();
  const auto chunk = static_cast<double>(plan.prefill_chunk);
  json["prompt"] = {{"chunk", plan.prefill_chunk},
                    {"bytes_per_token", outlook.prefill.Total() / chunk},
                    {"seconds_per_token", outlook.PrefillSeconds()}};
  json["context"] = ContextJson(outlook.model.config, outlook.request.latents);
  json["choices"] = ChoicesJson(outlook.choices);
  json["assumptions"] = Assumptions(outlook);
  return json;
}

// ---- text

std::string Size(double bytes) { return FormatBytes(static_cast<uint64_t>(std::llround(bytes))); }

std::string HeadText(const Outlook& outlook) {
  return fmt::format("{}: {} of memory, context {} in {}, {} cores, drive {} ({})\n",
                     outlook.model.name, FormatBytes(outlook.request.budget_bytes),
                     outlook.request.context, NameOf(outlook.request.latents),
                     outlook.request.num_threads, FormatRate(outlook.rates.drive_bytes_per_s),
                     outlook.drive_source);
}

std::string MemoryText(const Outlook& outlook) {
  const MemoryPlan& plan = outlook.plan;
  const WeightSizes& sizes = outlook.model.sizes;
  return fmt::format(
      "\nmemory\n{}  {:.1f} % of the trunk stays, {} of {} experts; a prompt goes by chunks of {} "
      "tokens\n",
      FormatLedger(plan.items),
      100 * static_cast<double>(plan.pinned_bytes) / static_cast<double>(sizes.trunk_bytes),
      plan.cached_experts, sizes.num_experts, plan.prefill_chunk);
}

std::string ReadsText(const Outlook& outlook) {
  std::string text = fmt::format("\n{:<24} {:>17} {:>12} {:>15}\n", "read for each token",
                                 "nothing resident", "this plan", "local routing");
  const auto row = [&](const char* name, double cold, double decode, double local) {
    text +=
        fmt::format("  {:<22} {:>17} {:>12} {:>15}\n", name, Size(cold), Size(decode), Size(local));
  };
  const SweepReads& cold = outlook.cold;
  const SweepReads& decode = outlook.decode;
  const SweepReads& local = outlook.local;
  row("trunk, layers", cold.layers, decode.layers, local.layers);
  row("routed experts", cold.experts, decode.experts, local.experts);
  row("output head", cold.head, decode.head, local.head);
  row("embedding row", cold.embedding, decode.embedding, local.embedding);
  row("in all", cold.Total(), decode.Total(), local.Total());
  return text;
}

std::string PaceText(const Outlook& outlook) {
  const double seconds = outlook.Seconds({});
  const auto chunk = static_cast<double>(outlook.plan.prefill_chunk);
  return fmt::format(
      "\nexpected\n"
      "  {} a token ({:.3g} tokens/s): the drive takes {}, the cores {}\n"
      "  {} a token with local routing\n"
      "  {} a token of a prompt, which reads {} each\n"
      "  {} on disk for the text model\n",
      FormatSeconds(seconds), 1 / seconds, FormatSeconds(outlook.ReadSeconds()),
      FormatSeconds(outlook.CoreSeconds()), FormatSeconds(outlook.Seconds(kLocalSweep)),
      FormatSeconds(outlook.PrefillSeconds()), Size(outlook.prefill.Total() / chunk),
      FormatBytes(outlook.model.disk_bytes));
}

std::string ChoicesText(const std::vector<Choice>& choices) {
  std::string text = "\nseconds a token with more memory or a faster drive\n";
  text += fmt::format("  {:<10} {:>12}", "memory", "read");
  for (const double drive : kDrives) text += fmt::format(" {:>10}", fmt::format("{} GB/s", drive));
  text += "\n";
  for (const Choice& choice : choices) {
    text += fmt::format("  {:<10} {:>12}", fmt::format("{} GB", choice.gigabytes),
                        choice.reads ? Size(choice.reads->Total()) : "too small");
    for (const double seconds : choice.seconds) text += fmt::format(" {:>10.3g}", seconds);
    text += "\n";
  }
  return text;
}

std::string ContextText(const ModelConfig& config) {
  std::string text = fmt::format("\na context costs {} at any length, and in all\n",
                                 FormatBytes(StateCache::Bytes(config, 0)));
  for (const LatentFormat format : kLatentFormats) {
    text += fmt::format("  --kv {:<5} {:>8} a token", NameOf(format),
                        FormatBytes(ContextTokenBytes(config, format)));
    for (const auto& [name, tokens] : kContexts) {
      if (tokens > config.max_context) continue;
      text +=
          fmt::format("; {} for {}", FormatBytes(StateCache::Bytes(config, tokens, format)), name);
    }
    text += "\n";
  }
  return text;
}

std::string ToText(const Outlook& outlook) {
  std::string text = HeadText(outlook) + MemoryText(outlook) + ReadsText(outlook) +
                     PaceText(outlook) + ChoicesText(outlook.choices) +
                     ContextText(outlook.model.config) + "\nassumed\n";
  for (const std::string& line : Assumptions(outlook)) text += "  - " + line + "\n";
  return text;
}

void Plan(const PlanOptions& options) {
  const Outlook outlook = LookAhead(options);
  Print(options.json ? ToJson(outlook).dump(2) + "\n" : ToText(outlook));
}

}  // namespace

void AddPlanCommand(CLI::App& program) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App& app = *program.add_subcommand(
      "plan", "Show what to expect of a model on this machine, before any download");
  AddModelOption(app, &options->model);
  app.add_option("--arch", options->arch,
                 "Plan for a published model instead: kimi-k3 or kimi-linear-48b")
      ->type_name("NAME")
      ->excludes("--model");
  AddMemoryOption(app, &options->memory);
  app.add_option("--drive", options->drive,
                 fmt::format("Rate of the drive in GB/s (default: measured where the model is "
                             "there, else {})",
                             kAssumedDrive))
      ->type_name("X")
      ->check(CLI::Range(1e-3, 1e4));
  app.add_option("--cores", options->cores,
                 "Compute threads (default: the physical cores this process may use)")
      ->type_name("N")
      ->check(CLI::Range(size_t{1}, kMaxCores));
  app.add_option("-c,--context", options->context,
                 fmt::format("Tokens to make room for (default: {})", kDefaultContext))
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  AddLatentsOption(app, &options->latents);
  app.add_flag("--json", options->json, "Print JSON");
  app.callback([options] { Plan(*options); });
}

}  // namespace thimble::cli
