#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/byte_size.h"
#include "cli/commands.h"
#include "cli/lossy_report.h"
#include "cli/options.h"
#include "format/container.h"
#include "format/download.h"
#include "format/model_config.h"
#include "format/model_summary.h"
#include "format/tensor_store.h"
#include "outlook/embedded_model.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InspectOptions {
  std::filesystem::path model;
  bool json = false;
};

// What is known of a model: from its shards, or from its configuration and index where those are
// not all there.
struct Inspection {
  ModelConfig config;
  ModelSummary summary;
  size_t num_shards = 0;
  size_t num_tensors = 0;   // of the index; 0 for one file
  bool has_shards = false;  // all of them
  DownloadState download;
  std::optional<ContainerManifest> container;  // where the model is packed
  size_t plain_experts = 0;                    // there, whose scales are not coded

  size_t NumExperts() const { return summary.moe_layers * config.moe.num_experts; }
  // What the experts take, of what they would with plain scales.
  double ExpertShare() const {
    const uint64_t plain = NumExperts() * ExpertBytes(config);
    const uint64_t stored = summary.Part(ModelPart::kExperts).bytes;
    return plain == 0 ? 1 : static_cast<double>(stored) / static_cast<double>(plain);
  }

  uint64_t StoredBytes() const {
    uint64_t bytes = 0;
    for (const ContainerFile& file : container->files) bytes += file.size;
    return bytes;
  }
};

size_t CountPlainExperts(const ModelConfig& config, const TensorStore& store) {
  size_t count = 0;
  for (size_t layer = 0; layer < config.num_layers(); ++layer) {
    if (config.layers[layer].feed_forward != FeedForwardKind::kMoe) continue;
    for (size_t expert = 0; expert < config.moe.num_experts; ++expert) {
      count += store.Expert(layer, expert).coded_scale_bytes == 0 ? 1 : 0;
    }
  }
  return count;
}

Inspection Examine(const std::filesystem::path& dir) {
  Inspection found;
  found.config = ReadModelConfig(dir);
  if (IsContainer(dir)) {
    found.container = OpenContainer(dir, found.config).manifest;
    const TensorStore store = TensorStore::Open(dir, found.config);
    found.summary = Summarize(found.config, store);
    found.plain_experts = CountPlainExperts(found.config, store);
    return found;
  }
  const auto report = TensorStore::CheckIndex(dir, found.config);
  found.num_shards = report.shards.size();
  found.num_tensors = report.num_tensors;
  found.download = ExamineDownload(dir, report.shards);
  found.has_shards = found.download.is_complete();
  found.summary = found.has_shards ? Summarize(found.config, TensorStore::Open(dir, found.config))
                                   : Summarize(found.config);
  return found;
}

std::string NameOf(Architecture architecture) {
  return architecture == Architecture::kKimiK3 ? "Kimi K3" : "Kimi-Linear";
}

// "2.78 T", "13.5 M".
std::string FormatCount(uint64_t count) {
  constexpr const char* kUnits[] = {"", " k", " M", " G", " T"};
  auto value = static_cast<double>(count);
  size_t unit = 0;
  while (value >= 999.5 && unit < 4) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g}{}", value, unit == 3 ? " B" : kUnits[unit]);
}

// How much of a model its container stores; less than the model has where extents are shared.
struct StoredLayers {
  size_t layers = 0;
  size_t experts = 0;  // over all layers
};

StoredLayers CountStored(const ContainerManifest& manifest) {
  std::set<size_t> layers;
  std::map<size_t, size_t> experts;
  for (const ContainerLayer& layer : manifest.layers) {
    layers.insert(layer.first_extent);
    size_t& count = experts[layer.first_expert];
    count = std::max(count, layer.distinct_experts);
  }
  StoredLayers stored = {layers.size(), 0};
  for (const auto& [first, count] : experts) stored.experts += count;
  return stored;
}

std::string DescribeContainer(const Inspection& found) {
  const ContainerManifest& manifest = *found.container;
  std::string text =
      fmt::format("\npacked container: {} files, {} on disk, {} extents in place\n",
                  manifest.files.size(), FormatBytes(found.StoredBytes()), manifest.num_extents);
  for (size_t i = 1; i < manifest.directories.size(); ++i) {
    text += fmt::format("a part of the files is in {}\n", manifest.directories[i]);
  }
  if (manifest.shared_extents) {
    const StoredLayers stored = CountStored(manifest);
    text += fmt::format(
        "synthetic: its {} layers share {} that are stored, its {} experts share {}; caches and "
        "drives see less than a real model would ask of them\n",
        manifest.layers.size(), stored.layers, found.NumExperts(), stored.experts);
  }
  if (manifest.coded_scales) {
    text += fmt::format("experts with coded scales: {:.1f} % of their bytes; {} of {} stay plain\n",
                        100 * found.ExpertShare(), found.plain_experts, found.NumExperts());
  }
  return text + LossyText(manifest.lossy) + fmt::format("source: {}\n", manifest.source);
}

const char* NameOf(DownloadedFile::State state) {
  switch (state) {
    case DownloadedFile::State::kWhole:
      return "whole";
    case DownloadedFile::State::kCut:
      return "cut";
    case DownloadedFile::State::kUnwritten:
      return "unwritten";
    case DownloadedFile::State::kMissing:
      return "missing";
    case DownloadedFile::State::kForeign:
      return "foreign";
    case DownloadedFile::State::kDamaged:
      return "damaged";
  }
  return "";
}

// Every shard that is not whole, by name.
Json DownloadJson(const DownloadState& download) {
  Json json = {{"complete", download.is_complete()},
               {"whole", download.Count(DownloadedFile::State::kWhole)},
               {"incomplete", Json::array()},
               {"unfinished", Json::array()},
               {"running", download.is_running()}};
  for (const DownloadedFile& shard : download.shards) {
    if (shard.state == DownloadedFile::State::kWhole) continue;
    Json entry = {{"name", shard.name}, {"state", NameOf(shard.state)}, {"bytes", shard.bytes}};
    if (shard.expected_bytes) entry["expected_bytes"] = *shard.expected_bytes;
    if (!shard.problem.empty()) entry["problem"] = shard.problem;
    json["incomplete"].push_back(std::move(entry));
  }
  for (const UnfinishedFile& file : download.unfinished) {
    json["unfinished"].push_back(
        {{"path", file.path.string()}, {"bytes", file.bytes}, {"idle_seconds", file.idle_seconds}});
  }
  if (!download.is_complete()) json["next"] = download.next;
  return json;
}

Json ToJson(const Inspection& found) {
  const ModelSummary& summary = found.summary;
  const ModelConfig& config = found.config;
  Json json;
  json["architecture"] = NameOf(config.architecture);
  json["layers"] = config.num_layers();
  json["kda_layers"] = summary.kda_layers;
  json["mla_layers"] = summary.mla_layers;
  json["dense_layers"] = summary.dense_layers;
  json["moe_layers"] = summary.moe_layers;
  json["hidden_size"] = config.hidden_size;
  json["vocab_size"] = config.vocab_size;
  json["max_context"] = config.max_context;
  json["experts"] = config.moe.num_experts;
  json["experts_per_token"] = config.moe.top_k;
  json["total_parameters"] = summary.total_parameters;
  json["active_parameters"] = summary.active_parameters;
  json["total_bytes"] = summary.total_bytes;
  for (size_t i = 0; i < kNumModelParts; ++i) {
    const auto part = static_cast<ModelPart>(i);
    json["parts"][std::string(thimble::NameOf(part))] = {
        {"parameters", summary.Part(part).parameters}, {"bytes", summary.Part(part).bytes}};
  }
  json["shards"] = found.num_shards;
  json["shards_present"] = found.has_shards;
  if (!found.container) json["download"] = DownloadJson(found.download);
  if (found.container) {
    const StoredLayers stored = CountStored(*found.container);
    json["container"] = {{"source", found.container->source},
                         {"files", found.container->files.size()},
                         {"directories", found.container->directories},
                         {"extents", found.container->num_extents},
                         {"bytes", found.StoredBytes()},
                         {"shared_extents", found.container->shared_extents},
                         {"lossy", LossyJson(found.container->lossy)},
                         {"coded_scales", found.container->coded_scales},
                         {"expert_share", found.ExpertShare()},
                         {"experts_with_plain_scales", found.plain_experts},
                         {"distinct_layers", stored.layers},
                         {"distinct_experts", stored.experts}};
  }
  return json;
}

std::string ToText(const Inspection& found) {
  const ModelSummary& summary = found.summary;
  const ModelConfig& config = found.config;
  std::string text = fmt::format(
      "{}: {} parameters, {} active for each token\n"
      "{} layers: {} KDA and {} MLA; {} dense and {} of {} experts, top {}\n"
      "hidden size {}, vocabulary {}, context up to {}\n",
      NameOf(config.architecture), FormatCount(summary.total_parameters),
      FormatCount(summary.active_parameters), config.num_layers(), summary.kda_layers,
      summary.mla_layers, summary.dense_layers, summary.moe_layers, config.moe.num_experts,
      config.moe.top_k, config.hidden_size, config.vocab_size, config.max_context);
  text += fmt::format("\n{:<20} {:>12} {:>12}\n", "part", "parameters", "bytes");
  for (size_t i = 0; i < kNumModelParts; ++i) {
    const auto part = static_cast<ModelPart>(i);
    if (summary.Part(part).bytes == 0) continue;
    text += fmt::format("{:<20} {:>12} {:>12}\n", thimble::NameOf(part),
                        FormatCount(summary.Part(part).parameters),
                        FormatBytes(summary.Part(part).bytes));
  }
  text += fmt::format("{:<20} {:>12} {:>12}\n", "in all", FormatCount(summary.total_parameters),
                      FormatBytes(summary.total_bytes));
  if (found.container) {
    text += DescribeContainer(found);
  } else if (found.has_shards) {
    text += fmt::format("\n{} shards, every tensor in its place\n", found.num_shards);
  } else {
    text += fmt::format(
        "\nthe index names {} tensors in {} shards, complete\n"
        "the download is not: {}\n{}\n",
        found.num_tensors, found.num_shards, DescribeDownload(found.download), found.download.next);
  }
  return text;
}

void Inspect(const InspectOptions& options) {
  const Inspection found = Examine(ModelOrEmbedded(options.model));
  Print(options.json
            ? ToJson(found).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
            : ToText(found));
}

}  // namespace

void AddInspectCommand(CLI::App& program) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App& app = *program.add_subcommand(
      "inspect", "Show what a model is made of, and check that its files are complete");
  AddModelOption(app, &options->model);
  app.add_flag("--json", options->json, "Print JSON");
  app.callback([options] { Inspect(*options); });
}

}  // namespace thimble::cli
