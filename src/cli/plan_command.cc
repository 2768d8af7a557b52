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
      fmt::print(stderr, "note: --memory: this machine can give {}: {}\n",
                 FormatBytes(ceiling.bytes), ceiling.reason);
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
  app.add_option("--arch", options->request.arch,
                 "Plan for a published model instead: kimi-k3 or kimi-linear-48b")
      ->type_name("NAME")
      ->excludes("--model");
  AddMemoryOption(app, &options->memory);
  app.add_option("--drive", options->request.drive,
                 fmt::format("Rate of the drive in GB/s (default: measured where the model is "
                             "there, else {})",
                             kAssumedDrive))
      ->type_name("X")
      ->check(CLI::Range(1e-3, 1e4));
  app.add_option("--cores", options->request.cores,
                 "Compute threads (default: the physical cores this process may use)")
      ->type_name("N")
      ->check(CLI::Range(size_t{1}, kMaxCores));
  app.add_option("-c,--context", options->request.context,
                 fmt::format("Tokens to make room for (default: {})", kDefaultPlanContext))
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  AddLatentsOption(app, &options->request.latents);
  app.add_flag("--json", options->json, "Print JSON");
  app.callback([options] { Plan(*options); });
}

}  // namespace thimble::cli
