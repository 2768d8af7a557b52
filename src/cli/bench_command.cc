#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "base/byte_size.h"
#include "base/cpu_topology.h"
#include "base/error.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "engine/planner.h"
#include "measure/drive_bench.h"
#include "measure/kernel_bench.h"
#include "measure/machine_limits.h"
#include "measure/sweep_bench.h"
#include "memory/process_memory.h"
#include "outlook/embedded_model.h"
#include "outlook/planned_model.h"
#include "terminal/interrupt.h"

namespace thimble::cli {
namespace {

// Of the file that is written where the model's own are too small to measure a drive by.
constexpr uint64_t kProbeFileBytes = 256 * kMiB;
// An expert of Kimi K3, for models whose experts say nothing of a drive.
constexpr uint64_t kUsualExpertBytes = 17547264;
// What the process may grow by beside the buffers: tables, stacks, pages of code.
constexpr uint64_t kGrowthBytes = 16 * kMiB;

struct BenchOptions {
  ModelOptions model;
  std::string part;  // empty: all
  bool json = false;
};

bool GoOn() { return !Interrupted(); }

// Ends a sweep as soon as the user wants that.
struct UntilInterrupted final : Session::Observer {
  bool OnLayer(size_t) override { return Continue(); }
  bool Continue() override { return GoOn(); }
  void OnProgress(size_t, size_t) override {}
  bool OnPause() override { return GoOn(); }
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_(options),
        threads_(options.model.threads != 0 ? options.model.threads : UsablePhysicalCores()),
        budget_bytes_(options.model.MemoryBytes().value_or(DefaultMemoryBudget())),
        report_(options.json) {}

  void Run() {
    CatchInterrupts();
    // The model first, while the process is small.
    if (Wants("prefill") || Wants("decode")) Sweeps();
    if (Wants("io")) Drive();
    if (Wants("kernels")) TimeKernels();
    report_.End({{"simd", BestKernels().simd},
                 {"threads", threads_},
                 {"budget_bytes", budget_bytes_},
                 {"peak_rss_bytes", ReadProcessMemory().peak_rss_bytes}});
  }

 private:
  bool Wants(const std::string& part) const {
    return options_.part.empty() || options_.part == part;
  }

  void Sweeps() {
    const ModelDirectory model = ModelDirectory::Open(ModelOrEmbedded(options_.model.model));
    EngineOptions engine_options = options_.model.ForEngine();
    engine_options.num_threads = threads_;
    engine_options.memory_bytes = budget_bytes_;
    engine_options.context = SweepBenchContext(model.config);
    const auto engine = Engine::Open(model, engine_options);
    const std::string title = fmt::format("{}, {} of memory, {}", model.path.string(),
                                          FormatBytes(budget_bytes_), engine->ReaderDescription());
    UntilInterrupted observer;
    if (Wants("prefill")) {
      report_.Begin("prefill", title);
      report_.Add(BenchPrefill(*engine, &observer));
    }
    if (Wants("decode")) {
      report_.Begin("decode", title);
      report_.Add(BenchDecode(*engine, &observer));
    }
  }

  // The budget of a part that opens no model.
  template <typename Part>
  void Within(const Part& part) const {
    MemoryBudget budget(budget_bytes_);
    const Reservation process =
        budget.Reserve("process", ReadProcessMemory().rss_bytes + kGrowthBytes);
    part(budget);
  }

  void Drive() {
    const PlannedModel model = PlannedModel::FromDirectory(ModelOrEmbedded(options_.model.model));
    DriveBenchOptions drive;
    drive.go_on = GoOn;
    drive.files = model.files;
    uint64_t bytes = 0;
    for (const auto& file : drive.files) bytes += std::filesystem::file_size(file);
    drive.random_bytes = model.sizes.stored_expert_bytes;
    if (bytes >= kProbeFileBytes && drive.random_bytes > 0) {
      report_.Begin("io", "the model's files");
      Within([&](MemoryBudget& budget) { TimeDrive(drive, budget); });
      return;
    }
    report_.Begin("io", fmt::format("a probe file of {} in the current folder",
                                    FormatBytes(kProbeFileBytes)));
    ProbeFile file(".");
    if (file.LivesInMemory()) {
      report_.AddObstacle("the file system keeps its files in memory, not on a drive");
      return;
    }
    Within([&](MemoryBudget& budget) {
      {
        Buffer scratch(budget, "drive probe", kProbeReadBytes);
        file.Fill(kProbeFileBytes, {scratch.data(), scratch.bytes()}, GoOn);
      }
      drive.files = {file.path()};
      drive.random_bytes = kUsualExpertBytes;
      TimeDrive(drive, budget);
    });
  }

  void TimeDrive(const DriveBenchOptions& drive, MemoryBudget& budget) {
    const DriveBenchReport found =
        BenchDrive(drive, budget, [&](const Measurement& one) { report_.Add(one); });
    if (!found.obstacle.empty()) report_.AddObstacle(found.obstacle);
  }

  // More than the caches hold, as far as the budget reaches. One too small for the least is refused
  // when the weights are made.
  uint64_t KernelBytes(const MemoryBudget& budget) const {
    const uint64_t used = budget.used_bytes() + KernelBenchRestBytes(threads_);
    const uint64_t room = used < budget_bytes_ ? budget_bytes_ - used : 0;
    return std::min(BeyondCaches(), std::max(kLeastBeyondCaches, room));
  }

  void TimeKernels() {
    Within([&](MemoryBudget& budget) {
      KernelBenchOptions kernels;
      kernels.num_threads = threads_;
      kernels.bytes = KernelBytes(budget);
      kernels.go_on = GoOn;
      report_.Begin("kernels", fmt::format("{}, {} of weights, states or latents",
                                           BestKernels().simd, FormatBytes(kernels.bytes)));
      BenchKernels(kernels, budget, [&](const Measurement& one) { report_.Add(one); });
    });
  }

  const BenchOptions& options_;
  const size_t threads_;
  const uint64_t budget_bytes_;
  BenchReport report_;
};

}  // namespace

void AddBenchCommand(CLI::App& program) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App& app = *program.add_subcommand(
      "bench", "Measure kernels, drive and model beside the limits of this machine");
  app.footer(
      "kernels: products of each stored format, KDA and MLA, beside a loop that reads memory and "
      "one of multiply-adds.\n"
      "io: the engine's reader, in order and an expert at a time, beside plain direct reads.\n"
      "decode, prefill: tokens a second of the model, and whether drive or cores set the pace.\n"
      "Results are compared with plain ones before anything is timed. Figures are medians, least "
      "and most in brackets, then the share of what the machine did meanwhile.");
  app.add_option("part", options->part, "What to measure (default: all)")
      ->type_name("kernels|io|decode|prefill")
      ->check(CLI::IsMember({"kernels", "io", "decode", "prefill"}));
  AddModelOption(app, &options->model.model);
  AddThreadsOption(app, &options->model.threads);
  AddMemoryOption(app, &options->model.memory);
  app.add_flag("--json", options->json, "Print JSON");
  app.callback([options] { Bench(*options).Run(); });
}

}  // namespace thimble::cli
