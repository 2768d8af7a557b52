#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/pack_progress.h"
#include "outlook/embedded_model.h"
#include "pack/verify.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

std::string DescribeShards(const VerifyReport& report) {
  if (report.num_hashed == 0) {
    return fmt::format(
        "all {} shards are complete and readable; no published checksums lie beside them",
        report.num_checked);
  }
  if (report.num_hashed == report.num_checked) {
    return fmt::format("all {} shards have their published SHA-256", report.num_checked);
  }
  return fmt::format(
      "all {} shards are complete and readable; {} have their published SHA-256, "
      "beside the others lies none",
      report.num_checked, report.num_hashed);
}

void Verify(const std::filesystem::path& given) {
  const std::filesystem::path model = ModelOrEmbedded(given);
  PackProgress progress("reading the model");
  const VerifyReport report = VerifyModel(model, &progress);
  progress.Clear();
  for (const std::string& damage : report.damages) Note("damaged: {}\n", damage);
  if (report.num_damaged > 0) {
    throw Error(ErrorCode::kBadModel,
                fmt::format("{} damaged places in {}, the first: {}; {}", report.num_damaged,
                            model.string(), report.damages.front(),
                            report.is_container ? "copy that file again, or pack the model again"
                                                : "download that file again"));
  }
  Print(fmt::format("{}: {}, {}\n", model.string(),
                    report.is_container
                        ? fmt::format("all {} checksums are right", report.num_checked)
                        : DescribeShards(report),
                    progress.Summary(report.bytes)));
}

}  // namespace

void AddVerifyCommand(CLI::App& program) {
  auto model = std::make_shared<std::filesystem::path>();
  CLI::App& app = *program.add_subcommand(
      "verify", "Read all of a model, and name what is damaged: by checksums where it is packed");
  AddModelOption(app, model.get());
  app.callback([model] { Verify(*model); });
}

}  // namespace thimble::cli
