#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/pack_progress.h"
#include "pack/synth.h"

namespace thimble::cli {
namespace {

// Of layers and experts; a shape sets lower limits.
constexpr CountRange kParts = {1, 1 << 20};

struct SynthCommandOptions {
  SynthOptions synth;
  std::filesystem::path directory;
  WriteOptions write;
};

void Synthesize(const SynthCommandOptions& options) {
  PackProgress progress("writing and reading back");
  const PackResult result =
      SynthesizeModel(options.synth, options.directory, options.write, &progress);
  progress.Clear();
  ReportPack(result, options.directory, progress);
}

}  // namespace

void AddSynthCommand(CLI::App& program) {
  auto options = std::make_shared<SynthCommandOptions>();
  SynthOptions& synth = options->synth;
  CLI::App& app = *program.add_subcommand(
      "synth", "Make a model of random weights in the shape of a published one, to measure with");
  AddText(app, "--arch", "NAME", &synth.architecture,
          fmt::format("The shape: {}", fmt::join(PublishedModelNames(), ", ")))
      ->required();
  AddText(app, "-o,--output", "DIR", &options->directory, "Directory to make")->required();
  AddCount(app, "--layers", kParts, &synth.shape.layers, "Layers (default: as published)");
  AddCount(app, "--experts", kParts, &synth.shape.experts,
           "Experts of a layer (default: as published)");
  AddCount(app, "--distinct-layers", kParts, &synth.distinct_layers,
           "Store N layers of each kind, which the others repeat (default: all)");
  AddCount(app, "--distinct-experts", kParts, &synth.distinct_experts,
           "Store N experts of a layer, which the others repeat (default: all)");
  AddCount(app, "-s,--seed", {}, &synth.seed,
           "Seed: the same seed gives the same bytes (default: 0)");
  AddRawOption(app, &options->write);
  app.callback([options] { Synthesize(*options); });
}

}  // namespace thimble::cli
