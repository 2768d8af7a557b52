#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/pack_progress.h"
#include "format/model_files.h"
#include "pack/pack.h"

namespace thimble::cli {
namespace {

struct PackCommandOptions {
  std::filesystem::path model;
  std::vector<std::filesystem::path> directories;
  std::string experts;  // as typed
  std::string trunk;    // likewise
  WriteOptions write;
};

void Pack(const PackCommandOptions& options) {
  PackProgress progress("packing and reading back");
  WriteOptions write = options.write;
  write.mxfp4_experts = !options.experts.empty();
  write.q8_trunk = !options.trunk.empty();
  const PackResult result =
      PackModel(ResolveModelDirectory(options.model), options.directories, write, &progress);
  progress.Clear();
  ReportPack(result, options.directories[0], progress);
}

}  // namespace

void AddPackCommand(CLI::App& program) {
  auto options = std::make_shared<PackCommandOptions>();
  CLI::App& app = *program.add_subcommand(
      "pack",
      "Copy a model into files that are read in order, with checksums; run again, it goes on where "
      "it stopped");
  AddText(app, "-m,--model", "DIR", &options->model,
          "Model directory: as downloaded, or packed before")
      ->required();
  AddTexts(app, "-o,--output", "DIR", &options->directories,
           "Directory to make; given several times, the experts are spread over them, e.g. over "
           "several drives")
      ->required();
  AddRawOption(app, &options->write);
  app.add_option("--experts", options->experts,
                 "Lossy: quantise BF16 experts to a format, mxfp4: about a quarter of the bytes, "
                 "other logits (default: as they are)")
      ->type_name("FORMAT")
      ->check(CLI::IsMember(std::vector<std::string>{"mxfp4"}));
  app.add_option(
         "--trunk", options->trunk,
         "Lossy: quantise the trunk's large matrices to a format, q8: about half the bytes, "
         "other logits (default: coded without loss)")
      ->type_name("FORMAT")
      ->check(CLI::IsMember(std::vector<std::string>{"q8"}));
  app.callback([options] { Pack(*options); });
}

}  // namespace thimble::cli
