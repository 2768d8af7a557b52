#include "cli/plan_report.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/byte_size.h"
#include "cli/lossy_report.h"
#include "memory/memory_budget.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kLatentFormats = {LatentFormat::kF32, LatentFormat::kBF16, LatentFormat::kFP8};
constexpr std::array<std::pair<const char*, size_t>, 3> kContexts = {
    {{"8K", 8192}, {"128K", 131072}, {"1M", 1048576}}};

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

Json ReadsJson(const SweepReads& reads) {
  return {{"trunk_layers", reads.layers},
          {"output_head", reads.head},
          {"routed_experts", reads.experts},
          {"embedding", reads.embedding},
          {"total", reads.Total()}};
}

// How fast the machine is, with the rates of those formats that the model has.
Json MachineJson(const Outlook& outlook) {
  Json json = {{"cores", outlook.request.num_threads},
               {"drive_bytes_per_s", outlook.rates.drive_bytes_per_s},
               {"drive_source", outlook.drive_source}};
  for (const WeightFormat format : FormatsOf(outlook.model.config, outlook.model.sizes)) {
    const WeightRate& rate = outlook.rates.Of(format);
    json["products"][NameOf(format)] = {{"bytes_per_s", rate.bytes_per_s}, {"flops", rate.flops}};
  }
  return json;
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

Json ChoicesJson(const std::vector<BudgetChoice>& choices) {
  Json rows = Json::array();
  for (const BudgetChoice& choice : choices) {
    Json row = {{"memory_gb", choice.gigabytes}, {"fits", choice.reads.has_value()}};
    if (choice.reads) row["bytes_per_token"] = choice.reads->Total();
    for (size_t i = 0; i < choice.seconds.size(); ++i) {
      row["seconds_per_token"].push_back(
          {{"drive_gb_per_s", kPlanDrives[i]}, {"seconds", choice.seconds[i]}});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string Size(double bytes) { return FormatBytes(static_cast<uint64_t>(std::llround(bytes))); }

std::string HeadText(const Outlook& outlook) {
  return fmt::format("{}: {} of memory, context {} in {}, {} cores, drive {} ({})\n",
                     outlook.model.name, FormatBytes(outlook.request.budget_bytes),
                     outlook.request.context, NameOf(outlook.request.latents),
                     outlook.request.num_threads, FormatRate(outlook.rates.drive_bytes_per_s),
                     outlook.drive_source) +
         LossyText(outlook.model.lossy);
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
  const WeightSizes& sizes = outlook.model.sizes;
  if (sizes.stored_expert_bytes < sizes.expert_bytes) {
    text += fmt::format("  an expert is read in {:.1f} % of its {}: its scales are coded\n",
                        100 * sizes.StoredExpertShare(), FormatBytes(sizes.expert_bytes));
  }
  return text;
}

std::string PaceText(const Outlook& outlook) {
  const double seconds = outlook.TokenSeconds(Routing::kUniform);
  const auto chunk = static_cast<double>(outlook.plan.prefill_chunk);
  return fmt::format(
      "\nexpected\n"
      "  {} a token ({:.3g} tokens/s): the drive takes {}, the cores {}\n"
      "  {} a token with local routing\n"
      "  {} a token of a prompt, which reads {} each\n"
      "  {} on disk for the text model{}\n",
      FormatSeconds(seconds), 1 / seconds, FormatSeconds(outlook.ReadSeconds()),
      FormatSeconds(outlook.CoreSeconds()), FormatSeconds(outlook.TokenSeconds(Routing::kLocal)),
      FormatSeconds(outlook.PrefillSeconds()), Size(outlook.prefill.Total() / chunk),
      FormatBytes(outlook.model.disk_bytes),
      outlook.model.shares_extents ? ": synthetic, its layers or experts share what is stored"
                                   : "");
}

std::string ChoicesText(const std::vector<BudgetChoice>& choices) {
  std::string text = "\nseconds a token with more memory or a faster drive\n";
  text += fmt::format("  {:<10} {:>12}", "memory", "read");
  for (const double drive : kPlanDrives)
    text += fmt::format(" {:>10}", fmt::format("{} GB/s", drive));
  text += "\n";
  for (const BudgetChoice& choice : choices) {
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

}  // namespace

std::string PlanJson(const Outlook& outlook) {
  const MemoryPlan& plan = outlook.plan;
  const double seconds = outlook.TokenSeconds(Routing::kUniform);
  Json json;
  json["model"] = outlook.model.name;
  json["downloaded"] = !outlook.model.files.empty();
  json["packed"] = outlook.model.is_packed;
  json["shared_extents"] = outlook.model.shares_extents;
  json["lossy"] = LossyJson(outlook.model.lossy);
  json["disk_bytes"] = outlook.model.disk_bytes;
  json["memory"] = {{"budget_bytes", outlook.request.budget_bytes},
                    {"ledger", plan.items},
                    {"total_bytes", plan.TotalBytes()},
                    {"pinned_trunk_bytes", plan.pinned_bytes},
                    {"cached_experts", plan.cached_experts},
                    {"experts", outlook.model.sizes.num_experts}};
  json["machine"] = MachineJson(outlook);
  json["bytes_per_token"] = {{"nothing_resident", ReadsJson(outlook.cold)},
                             {"expected", ReadsJson(outlook.decode)},
                             {"local_routing", ReadsJson(outlook.local)}};
  json["stored_expert_share"] = outlook.model.sizes.StoredExpertShare();
  json["seconds_per_token"] = seconds;
  json["tokens_per_s"] = 1 / seconds;
  json["seconds_per_token_local_routing"] = outlook.TokenSeconds(Routing::kLocal);
  json["read_seconds_per_token"] = outlook.ReadSeconds();
  json["compute_seconds_per_token"] = outlook.CoreSeconds();
  const auto chunk = static_cast<double>(plan.prefill_chunk);
  json["prompt"] = {{"chunk", plan.prefill_chunk},
                    {"bytes_per_token", outlook.prefill.Total() / chunk},
                    {"seconds_per_token", outlook.PrefillSeconds()}};
  json["context"] = ContextJson(outlook.model.config, outlook.request.latents);
  json["choices"] = ChoicesJson(outlook.choices);
  json["assumptions"] = Assumptions(outlook);
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string PlanText(const Outlook& outlook) {
  std::string text = HeadText(outlook) + MemoryText(outlook) + ReadsText(outlook) +
                     PaceText(outlook) + ChoicesText(outlook.choices) +
                     ContextText(outlook.model.config) + "\nassumed\n";
  for (const std::string& line : Assumptions(outlook)) text += "  - " + line + "\n";
  return text;
}

}  // namespace thimble::cli
