#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "cli/commands.h"
#include "cli/pack_progress.h"
#include "pack/synth.h"

namespace thimble::cli {
namespace {

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
  app.add_option("--arch", synth.architecture,
                 fmt::format("The shape: {}", fmt::join(PublishedModelNames(), ", ")))
      ->type_name("NAME")
      ->required();
  app.add_option("-o,--output", options->directory, "Directory to make")
      ->type_name("DIR")
      ->required();
  app.add_option("--layers", synth.shape.layers, "Layers (default: as published)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option("--experts", synth.shape.experts, "Experts of a layer (default: as published)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option("--distinct-layers", synth.distinct_layers,
                 "Store N layers of each kind, which the others repeat (default: all)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option("--distinct-experts", synth.distinct_experts,
                 "Store N experts of a layer, which the others repeat (default: all)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option("-s,--seed", synth.seed, "Seed: same seed, same bytes (default: 0)")
      ->type_name("N");
  AddRawOption(app, &options->write);
  app.callback([options] { Synthesize(*options); });
}

}  // namespace thimble::cli
