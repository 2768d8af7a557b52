#include "cli/run_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/byte_size.h"
#include "cli/lossy_report.h"
#include "memory/memory_budget.h"
#include "memory/memory_nodes.h"
#include "memory/process_memory.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

double Rate(size_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

// The first token comes out of the prompt's own sweep; each later one costs a sweep of its own.
size_t DecodedTokens(const GenerationResult& result) {
  return result.ids.empty() ? 0 : result.ids.size() - 1;
}

nlohmann::ordered_json StatsJson(const Engine& engine, size_t prompt_tokens,
                                 const GenerationResult& result) {
  const EngineStats stats = engine.stats();
  const ProcessMemory memory = ReadProcessMemory();
  nlohmann::ordered_json json;
  json["prompt_tokens"] = prompt_tokens;
  json["generated_tokens"] = result.ids.size();
  json["prefill_s"] = result.prefill_seconds;
  json["decode_s"] = result.decode_seconds;
  json["prefill_tokens_per_s"] = Rate(prompt_tokens, result.prefill_seconds);
  json["decode_tokens_per_s"] = Rate(DecodedTokens(result), result.decode_seconds);
  json["peak_rss_bytes"] = memory.peak_rss_bytes;
  json["page_table_bytes"] = memory.page_table_bytes;
  json["budget_bytes"] = engine.budget_bytes();
  json["budget_ledger"] = engine.Ledger();
  json["read_bytes"] = stats.ReadBytes();
  json["trunk_read_bytes"] = stats.trunk_read_bytes;
  json["expert_read_bytes"] = stats.expert_read_bytes;
  json["expert_requests"] = stats.expert_requests;
  json["expert_hits"] = stats.expert_hits;
  json["locked_bytes"] = engine.locked_memory().locked_bytes;
  json["unlocked_bytes"] =
      engine.locked_memory().wanted_bytes - engine.locked_memory().locked_bytes;
  json["lock_obstacle"] = engine.locked_memory().obstacle;
  json["major_faults"] = memory.major_faults;
  json["minor_faults"] = memory.minor_faults;
  json["io_wait_s"] = stats.io_wait_seconds;
  json["io_bound_s"] = stats.sweeps.io_bound_seconds;
  json["compute_bound_s"] = stats.sweeps.compute_bound_seconds;
  json["kv"] = NameOf(engine.options().latents);
  json["io"] = engine.ReaderDescription();
  json["simd"] = engine.kernels().simd;
  json["threads"] = engine.num_threads();
  json["pinned_cpus"] = engine.placement().compute;
  json["pin_obstacle"] = engine.placement().reason;
  json["memory_nodes"] = ProcessMemoryNodes().count;
  json["interleaved"] = ProcessMemoryNodes().interleaves;
  json["ids"] = result.ids;
  return json;
}

void PrintDetails(const Engine& engine) {
  Note("{}", LossyText(engine.lossy()));
  const EngineStats stats = engine.stats();
  const SweepTimes& sweeps = stats.sweeps;
  const double sweep_seconds = sweeps.io_bound_seconds + sweeps.compute_bound_seconds;
  Note("the drive set the pace for {} ({:.0f} %), the cores for {} ({:.0f} %)\n",
       FormatSeconds(sweeps.io_bound_seconds), 100 * Share(sweeps.io_bound_seconds, sweep_seconds),
       FormatSeconds(sweeps.compute_bound_seconds),
       100 * Share(sweeps.compute_bound_seconds, sweep_seconds));
  Note("experts {} asked for, {:.1f} % of them in memory; {} page faults to disk\n",
       stats.expert_requests, 100 * stats.HitRate(), ReadProcessMemory().major_faults);
  const LockedMemory& locked = engine.locked_memory();
  Note("locked against swapping: {} of {} that stay{}{}\n", FormatBytes(locked.locked_bytes),
       FormatBytes(locked.wanted_bytes), locked.obstacle.empty() ? "" : "; ", locked.obstacle);
  const ThreadPlacement& placement = engine.placement();
  const MemoryNodes& nodes = ProcessMemoryNodes();
  Note("compute threads {}; {}\n",
       placement.binds() ? fmt::format("bound to CPUs {}", FormatCpuList(placement.compute))
                         : fmt::format("not bound to CPUs: {}", placement.reason),
       nodes.interleaves ? fmt::format("memory spread over {} nodes", nodes.count)
                         : fmt::format("memory not spread: {}", nodes.reason));
  Note("memory by use:\n{}", FormatLedger(engine.Ledger()));
}

}  // namespace

std::string RunStats(const Engine& engine, size_t prompt_tokens, const GenerationResult& result) {
  return StatsJson(engine, prompt_tokens, result)
             .dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

void ReportRun(const Engine& engine, size_t prompt_tokens, const GenerationResult& result,
               bool verbose) {
  const EngineStats stats = engine.stats();
  Note("prompt {} tokens in {} ({:.3g} tokens/s), generated {} in {} ({:.3g} tokens/s)\n",
       prompt_tokens, FormatSeconds(result.prefill_seconds),
       Rate(prompt_tokens, result.prefill_seconds), result.ids.size(),
       FormatSeconds(result.decode_seconds), Rate(DecodedTokens(result), result.decode_seconds));
  Note("memory {} at most, of {} granted; read {} ({}), waited {} for the drive\n",
       FormatBytes(ReadProcessMemory().peak_rss_bytes), FormatBytes(engine.budget_bytes()),
       FormatBytes(stats.ReadBytes()), engine.ReaderDescription(),
       FormatSeconds(stats.io_wait_seconds));
  if (verbose) PrintDetails(engine);
}

}  // namespace thimble::cli
