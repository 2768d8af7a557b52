#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_size.h"
#include "base/cpu_topology.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/machine_facts.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/planned_model.h"

namespace thimble::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kPlannedContext = 4096;
constexpr const char* kDefaultProbe = "256M";
constexpr uint64_t kSlowDrive = kGB;
// The least that the exact Kimi K3 runs in, about.
constexpr uint64_t kLittleMemory = 1'500 * kMB;

struct DoctorOptions {
  std::filesystem::path model;
  std::string memory;
  std::string probe = kDefaultProbe;
  bool json = false;
};

enum class Verdict : uint8_t { kOk, kWarn, kFail };

const char* NameOf(Verdict verdict) {
  constexpr const char* kNames[] = {"ok", "warn", "fail"};
  return kNames[static_cast<size_t>(verdict)];
}

// One line of the report.
struct Check {
  std::string name;
  Verdict verdict = Verdict::kOk;
  std::string found;
  std::string remedy;                       // empty where there is nothing to do
  Json figures = Json::object();            // the same for programs
  ErrorCode failure = ErrorCode::kRuntime;  // exit code, where it failed
};

struct Report {
  std::vector<Check> checks;
  std::string next;  // the command to run now

  Check& Add(std::string name, Verdict verdict, std::string found, std::string remedy = {}) {
    Check check;
    check.name = std::move(name);
    check.verdict = verdict;
    check.found = std::move(found);
    check.remedy = std::move(remedy);
    checks.push_back(std::move(check));
    return checks.back();
  }
  const Check* Find(const std::string& name) const {
    const auto found = std::find_if(checks.begin(), checks.end(),
                                    [&](const Check& check) { return check.name == name; });
    return found == checks.end() ? nullptr : &*found;
  }
  const Check* FirstFailure() const {
    const auto found = std::find_if(checks.begin(), checks.end(), [](const Check& check) {
      return check.verdict == Verdict::kFail;
    });
    return found == checks.end() ? nullptr : &*found;
  }
};

void CheckCpu(const MachineFacts& facts, Report* report) {
  const std::string simd = BestKernels().simd;
  const std::string cpu = facts.cpu.empty() ? "unknown" : facts.cpu;
  const bool fast = simd.starts_with("AVX2") || simd.starts_with("AVX3");
  report
      ->Add("cpu", fast ? Verdict::kOk : Verdict::kWarn,
            fmt::format("{}, kernels for {}", cpu, simd),
            fast ? ""
                 : "it runs, slowly: AVX2 or AVX-512 would help; in a virtual machine, let "
                   "the guest see the host's CPU")
      .figures = {{"cpu", cpu}, {"simd", simd}};
}

void CheckCores(Report* report) {
  const CpuTopology topology = ReadCpuTopology();
  const size_t usable = UsablePhysicalCores();
  std::string found = fmt::format("{} usable of {} physical ({} CPUs, {} in the affinity mask",
                                  usable, topology.cores, topology.cpus, topology.affinity_cpus);
  found += topology.quota ? fmt::format(", cgroup quota of {:.3g} CPUs)", *topology.quota)
                          : ", no cgroup quota)";
  const bool fewer = usable < topology.cores;
  Check& check = report->Add(
      "cores", fewer ? Verdict::kWarn : Verdict::kOk, std::move(found),
      fewer ? "raise the container's CPU limit or the affinity mask to use them all" : "");
  check.figures = {{"usable", usable},
                   {"physical", topology.cores},
                   {"cpus", topology.cpus},
                   {"affinity_cpus", topology.affinity_cpus},
                   {"quota", nullptr}};
  if (topology.quota) check.figures["quota"] = *topology.quota;
}

void CheckMemory(const MachineFacts& facts, Report* report) {
  std::string found = fmt::format("{} available of {}", FormatBytes(facts.available_bytes),
                                  FormatBytes(facts.memory_bytes));
  found += facts.cgroup_limit_bytes
               ? fmt::format(", cgroup limit {}", FormatBytes(*facts.cgroup_limit_bytes))
               : ", no cgroup limit";
  const bool little = facts.available_bytes < kLittleMemory;
  Check& check = report->Add(
      "memory", little ? Verdict::kWarn : Verdict::kOk, std::move(found),
      little ? "large models want 1.5 GB at least: close programs or raise the limit" : "");
  check.figures = {{"total_bytes", facts.memory_bytes},
                   {"available_bytes", facts.available_bytes},
                   {"cgroup_limit_bytes", nullptr}};
  if (facts.cgroup_limit_bytes) check.figures["cgroup_limit_bytes"] = *facts.cgroup_limit_bytes;
}

void CheckSwap(const MachineFacts& facts, Report* report) {
  const bool enabled = facts.swap_bytes > 0;
  report
      ->Add("swap", enabled ? Verdict::kWarn : Verdict::kOk,
            enabled ? fmt::format("{} enabled, {} used", FormatBytes(facts.swap_bytes),
                                  FormatBytes(facts.swap_used_bytes))
                    : "none",
            enabled ? "swapped weights are slower than weights that are read again: keep --memory "
                      "below what is available, or turn swap off with 'swapoff -a'"
                    : "")
      .figures = {{"total_bytes", facts.swap_bytes}, {"used_bytes", facts.swap_used_bytes}};
}

void CheckMemlock(const MachineFacts& facts, Report* report) {
  constexpr uint64_t kEnough = kMiB;
  const bool low = facts.memlock_bytes.value_or(kEnough) < kEnough;
  Check& check =
      report->Add("memlock", low ? Verdict::kWarn : Verdict::kOk,
                  facts.memlock_bytes
                      ? fmt::format("{}: pinned weights and the state of a session are locked "
                                    "against swapping where they fit in",
                                    FormatBytes(*facts.memlock_bytes))
                      : "no limit: pinned weights and the state of a session will not be swapped",
                  low ? "weights that stay may be swapped out, and kernels before 5.12 may refuse "
                        "io_uring: raise it with 'ulimit -l'"
                      : "");
  check.figures = {{"limit_bytes", nullptr}};
  if (facts.memlock_bytes) check.figures["limit_bytes"] = *facts.memlock_bytes;
}

void CheckFileSystem(const std::filesystem::path& folder, Report* report) {
  const FileSystemFacts facts = ReadFileSystemFacts(folder);
  const std::string type = facts.type.empty() ? "unknown" : facts.type;
  report
      ->Add("file system", facts.is_remote ? Verdict::kWarn : Verdict::kOk,
            fmt::format("{}, {} free", type, FormatBytes(facts.free_bytes)),
            facts.is_remote ? "weights are read for every token: keep them on a local drive" : "")
      .figures = {{"folder", std::filesystem::absolute(folder).string()},
                  {"type", type},
                  {"free_bytes", facts.free_bytes}};
}

// The shards where they are enough to measure by, otherwise a probe file in the current folder.
DriveProbe ProbeFor(const std::vector<std::filesystem::path>& shards, const DoctorOptions& options,
                    std::string* source) {
  const uint64_t bytes = ParseByteSize(options.probe).value_or(0);
  if (!shards.empty()) {
    *source = "the model's files";
    DriveProbe probe = MeasureDrive(shards);
    if (!probe.too_small) return probe;
  }
  *source = "a probe file in the current folder";
  const uint64_t free = ReadFileSystemFacts(".").free_bytes;
  if (free / 2 < bytes) {
    throw Error(ErrorCode::kRuntime,
                fmt::format("a probe file of {} would take more than half of the {} that are free "
                            "here; free some space, or give --probe a smaller size",
                            FormatBytes(bytes), FormatBytes(free)));
  }
  return MeasureDriveOf(".", bytes);
}

// The rate in bytes a second, if it could be measured.
std::optional<double> CheckDrive(const std::vector<std::filesystem::path>& shards,
                                 const DoctorOptions& options, Report* report) {
  std::string source;
  DriveProbe probe;
  try {
    probe = ProbeFor(shards, options, &source);
  } catch (const Error& error) {
    report->Add("drive", Verdict::kWarn, "not measured", error.what()).figures = {
        {"bytes_per_s", nullptr}};
    return std::nullopt;
  }
  if (!probe.bytes_per_s) {
    report
        ->Add("drive", Verdict::kWarn, fmt::format("not measured: {} ({})", probe.obstacle, source),
              "keep the weights on a drive that takes O_DIRECT, e.g. ext4 or xfs on NVMe")
        .figures = {{"bytes_per_s", nullptr}, {"obstacle", probe.obstacle}};
    return std::nullopt;
  }
  const bool slow = *probe.bytes_per_s < static_cast<double>(kSlowDrive);
  report
      ->Add(
          "drive", slow ? Verdict::kWarn : Verdict::kOk,
          fmt::format("{} ({} of {} by direct reads, {} in flight)", FormatRate(*probe.bytes_per_s),
                      FormatBytes(probe.read_bytes), source, kProbeReads),
          slow ? "an NVMe drive reads 3 to 14 GB/s: the drive sets the pace of large models" : "")
      .figures = {
      {"bytes_per_s", *probe.bytes_per_s}, {"read_bytes", probe.read_bytes}, {"source", source}};
  return probe.bytes_per_s;
}

// ---- the model

// The model, if its files are sound.
std::optional<PlannedModel> CheckModel(const std::filesystem::path& dir, Report* report) {
  const auto fail = [&](const char* name, const Error& error) {
    report
        ->Add(name, Verdict::kFail, error.what(),
              "download the file that is named again, then run this once more")
        .failure = error.code();
  };
  std::optional<PlannedModel> model;
  try {
    const ModelDirectory directory = ModelDirectory::Open(dir);
    const bool reads_text = directory.tokenizer.has_value();
    report->Add("tokenizer", reads_text ? Verdict::kOk : Verdict::kWarn,
                reads_text ? fmt::format("{} tokens", directory.tokenizer->vocab_size())
                           : "no tiktoken.model",
                reads_text ? "" : "without it only token ids go in and out: download it too");
  } catch (const Error& error) {
    fail("model", error);
    return std::nullopt;
  }
  if (!AnyShard(dir)) {
    Check& check = report->Add("weights", Verdict::kFail, "no .safetensors file is there",
                               "download the shards that model.safetensors.index.json names");
    check.failure = ErrorCode::kBadModel;
    return std::nullopt;
  }
  try {
    model = PlannedModel::FromDirectory(dir);
  } catch (const Error& error) {
    fail("weights", error);
    return std::nullopt;
  }
  report
      ->Add("weights", Verdict::kOk,
            fmt::format("{} shards, {}, every tensor in its place", model->shards.size(),
                        FormatBytes(model->disk_bytes)))
      .figures = {{"shards", model->shards.size()}, {"bytes", model->disk_bytes}};
  return model;
}

// What the model will be like here. `request` was made before anything large was measured.
void CheckPace(const PlannedModel& model, const PlanRequest& request,
               const std::optional<double>& drive, Report* report) {
  MemoryPlan plan;
  try {
    plan = PlanMemory(model.config, model.sizes, request);
  } catch (const Error& error) {
    report->Add("pace", Verdict::kFail, error.what(), "grant more memory").failure = error.code();
    return;
  }
  MachineRates rates = MeasureCompute(request.num_threads);
  // Without a figure for the drive, only the cores' part is known.
  rates.drive_bytes_per_s = drive.value_or(1e18);
  const double seconds = SweepSeconds(model.config, model.sizes, plan, rates, {});
  const double reads = ExpectedReads(model.config, model.sizes, plan, {}).Total();
  report
      ->Add("pace", drive ? Verdict::kOk : Verdict::kWarn,
            fmt::format("{} a token expected with {} of memory, {} read for each",
                        FormatSeconds(seconds), FormatBytes(request.budget_bytes),
                        FormatBytes(static_cast<uint64_t>(reads))),
            drive ? "" : "the drive could not be measured, so this counts the cores alone")
      .figures = {{"seconds_per_token", seconds}, {"bytes_per_token", reads}};
}

// ---- output

Json ToJson(const Report& report) {
  Json json;
  json["checks"] = Json::array();
  for (const Check& check : report.checks) {
    Json line = {{"name", check.name}, {"status", NameOf(check.verdict)}, {"found", check.found}};
    if (!check.remedy.empty()) line["remedy"] = check.remedy;
    if (!check.figures.empty()) line["figures"] = check.figures;
    json["checks"].push_back(std::move(line));
  }
  json["healthy"] = report.FirstFailure() == nullptr;
  json["next"] = report.next;
  return json;
}

std::string ToText(const Report& report) {
  std::string text;
  for (const Check& check : report.checks) {
    text += fmt::format("{:<5} {:<12} {}\n", NameOf(check.verdict), check.name, check.found);
    if (!check.remedy.empty()) text += fmt::format("{:19}-> {}\n", "", check.remedy);
  }
  return text + "\nnext: " + report.next + "\n";
}

std::string NextCommand(const DoctorOptions& options, const Report& report,
                        const std::optional<double>& drive) {
  if (options.model.empty()) {
    const std::string rate = drive ? fmt::format(" --drive {:.2f}", *drive / 1e9) : "";
    return "thimble plan --arch kimi-k3" + rate;
  }
  const std::string model = options.model.string();
  if (report.FirstFailure() != nullptr) return fmt::format("thimble doctor -m {}", model);
  const Check* tokenizer = report.Find("tokenizer");
  const bool reads_text = tokenizer != nullptr && tokenizer->verdict == Verdict::kOk;
  return fmt::format("thimble run -m {} {}", model,
                     reads_text ? "-p \"In the beginning\"" : "--ids 1,2,3");
}

Report Examine(const DoctorOptions& options) {
  Report report;
  const MachineFacts facts = ReadMachineFacts();
  CheckCpu(facts, &report);
  CheckCores(&report);
  CheckMemory(facts, &report);
  CheckSwap(facts, &report);
  CheckMemlock(facts, &report);
  CheckFileSystem(options.model.empty() ? "." : options.model, &report);
  std::optional<PlannedModel> model;
  if (!options.model.empty()) model = CheckModel(options.model, &report);
  std::optional<PlanRequest> request;
  if (model) {
    const uint64_t budget =
        options.memory.empty() ? DefaultMemoryBudget() : ParseByteSize(options.memory).value_or(0);
    EngineOptions planned;
    planned.context = std::min(kPlannedContext, model->config.max_context);
    request = model->Request(planned, budget, UsablePhysicalCores());
  }
  const auto shards = model ? model->shards : std::vector<std::filesystem::path>();
  const std::optional<double> drive = CheckDrive(shards, options, &report);
  if (model) CheckPace(*model, *request, drive, &report);
  report.next = NextCommand(options, report, drive);
  return report;
}

void Doctor(const DoctorOptions& options) {
  const Report report = Examine(options);
  Print(options.json ? ToJson(report).dump(2) + "\n" : ToText(report));
  if (const Check* failed = report.FirstFailure()) throw Error(failed->failure, "");
}

}  // namespace

void AddDoctorCommand(CLI::App& program) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App& app = *program.add_subcommand(
      "doctor", "Check this machine, and a model's files, and say what to do next");
  app.add_option("-m,--model", options->model,
                 "Check this model directory too (default: the machine alone)")
      ->type_name("DIR");
  AddMemoryOption(app, &options->memory);
  app.add_option("--probe", options->probe,
                 fmt::format("Size of the file that is written here, and removed, to measure the "
                             "drive by where no model is large enough (default: {})",
                             kDefaultProbe))
      ->type_name("SIZE")
      ->check(CheckSize);
  app.add_flag("--json", options->json, "Print JSON");
  app.callback([options] { Doctor(*options); });
}

}  // namespace thimble::cli
