#include <fmt/format.h>

#include <memory>
#include <optional>

#include "base/byte_size.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/plan_report.h"
#include "memory/process_memory.h"
#include "outlook/plan_outlook.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

constexpr size_t kMaxCores = 1024;

struct PlanOptions {
  OutlookRequest request;
  std::string memory;  // as typed
  bool json = false;
};

void Plan(const PlanOptions& options) {
  OutlookRequest request = options.request;
  if (!options.memory.empty()) request.memory_bytes = ParseByteSize(options.memory);
  if (request.memory_bytes) {
    // The plan may be for another machine, so it keeps what was asked for.
    const MemoryCeiling ceiling = ReadMemoryCeiling();
    if (*request.memory_bytes > ceiling.bytes) {
      Note("note: --memory: this machine can give {}: {}\n", FormatBytes(ceiling.bytes),
           ceiling.reason);
    }
  }
  const Outlook outlook = LookAhead(request);
  Print(options.json ? PlanJson(outlook) : PlanText(outlook));
}

}  // namespace

void AddPlanCommand(CLI::App& program) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App& app = *program.add_subcommand(
      "plan", "Show what to expect of a model on this machine, before any download");
  AddModelOption(app, &options->request.model);
  AddText(app, "--arch", "NAME", &options->request.arch,
          "Plan for a published model instead: kimi-k3 or kimi-linear-48b")
      ->excludes("--model");
  AddMemoryOption(app, &options->memory);
  AddReal(app, "--drive", {1e-3, 1e4}, &options->request.drive,
          fmt::format("Rate of the drive in GB/s (default: measured where the model is there, else "
                      "{})",
                      kAssumedDrive));
  AddCount(app, "--cores", {1, kMaxCores}, &options->request.cores,
           "Compute threads (default: the physical cores this process may use)");
  AddCount(app, "-c,--context", kSomeTokens, &options->request.context,
           fmt::format("Tokens to make room for (default: {}, or what the model can hold)",
                       kDefaultPlanContext));
  AddLatentsOption(app, &options->request.latents);
  app.add_flag("--json", options->json, "Print JSON");
  app.callback([options] { Plan(*options); });
}

}  // namespace thimble::cli
