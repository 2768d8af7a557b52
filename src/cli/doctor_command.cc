#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_size.h"
#include "base/cpu_topology.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "doctor/drive_check.h"
#include "doctor/machine_checks.h"
#include "doctor/model_checks.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

constexpr size_t kPlannedContext = 4096;
constexpr const char* kDefaultProbe = "256M";

struct DoctorOptions {
  std::filesystem::path model;
  std::string memory;
  std::string probe = kDefaultProbe;
  bool json = false;
};

std::string NextCommand(const DoctorOptions& options, const HealthReport& report,
                        const std::optional<double>& drive) {
  if (options.model.empty()) {
    const std::string rate = drive ? fmt::format(" --drive {:.2f}", *drive / 1e9) : "";
    return "thimble plan --arch kimi-k3" + rate;
  }
  const std::string model = options.model.string();
  if (report.FirstFailure() != nullptr) return fmt::format("thimble doctor -m {}", model);
  const HealthCheck* tokenizer = report.Find("tokenizer");
  const bool reads_text = tokenizer != nullptr && tokenizer->verdict == Verdict::kOk;
  return fmt::format("thimble run -m {} {}", model,
                     reads_text ? "-p \"In the beginning\"" : "--ids 1,2,3");
}

HealthReport Examine(const DoctorOptions& options) {
  HealthReport report;
  const MachineFacts facts = ReadMachineFacts();
  const std::optional<uint64_t> wanted =
      options.memory.empty() ? std::nullopt : ParseByteSize(options.memory);
  CheckMachine(facts, wanted, &report);
  CheckFileSystem(options.model.empty() ? "." : options.model, &report);
  std::optional<PlannedModel> model;
  if (!options.model.empty()) model = CheckModel(options.model, &report);
  std::optional<PlanRequest> request;
  if (model) {
    const uint64_t budget =
        wanted ? GrantMemory(*wanted, facts.ceiling).bytes : DefaultMemoryBudget();
    EngineOptions planned;
    planned.context = std::min(kPlannedContext, model->config.max_context);
    request = model->Request(planned, budget, UsablePhysicalCores());
  }
  const auto files = model ? model->files : std::vector<std::filesystem::path>();
  const std::optional<double> drive =
      CheckDrive(files, ParseByteSize(options.probe).value_or(0), &report);
  if (model) CheckPace(*model, *request, drive, &report);
  report.next = NextCommand(options, report, drive);
  return report;
}

void Doctor(const DoctorOptions& options) {
  const HealthReport report = Examine(options);
  Print(options.json ? report.Json() : report.Text());
  if (const HealthCheck* failed = report.FirstFailure()) throw Error(failed->failure, "");
}

}  // namespace

void AddDoctorCommand(CLI::App& program) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App& app = *program.add_subcommand(
      "doctor", "Check this machine, and a model's files, and say what to do next");
  AddText(app, "-m,--model", "DIR", &options->model,
          "Check this model directory too (default: the machine alone)");
  AddMemoryOption(app, &options->memory);
  AddSize(app, "--probe", {kMB, 1000 * kGB}, &options->probe,
          fmt::format("Size of the file that is written here, and removed, to measure the drive by "
                      "where no model is large enough (default: {})",
                      kDefaultProbe));
  app.add_flag("--json", options->json, "Print JSON");
  app.callback([options] { Doctor(*options); });
}

}  // namespace thimble::cli
