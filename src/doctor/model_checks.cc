#include "doctor/model_checks.h"

#include <fmt/format.h>

#include <string>

#include "base/byte_size.h"
#include "base/error.h"
#include "engine/model_directory.h"
#include "format/container.h"
#include "measure/compute_rates.h"
#include "terminal/output.h"

namespace thimble {
namespace {

const char* RepairOf(const std::filesystem::path& dir) {
  return IsContainer(dir) ? "copy the container again, or pack the model again, then check again"
                          : "download the named file again, then check again";
}

void AddFailure(const char* name, const Error& error, const std::filesystem::path& dir,
                HealthReport* report) {
  report->Add(name, Verdict::kFail, error.what(), RepairOf(dir)).failure = error.code();
}

// Config and tokenizer; false where they are unsound.
bool CheckSmallFiles(const std::filesystem::path& dir, HealthReport* report) {
  try {
    const ModelDirectory directory = ModelDirectory::Open(dir);
    const bool reads_text = directory.tokenizer.has_value();
    report->Add("tokenizer", reads_text ? Verdict::kOk : Verdict::kWarn,
                reads_text ? fmt::format("{} tokens", directory.tokenizer->vocab_size())
                           : "no tiktoken.model",
                reads_text
                    ? ""
                    : "without it the model takes and gives token ids only: download it as well");
    return true;
  } catch (const Error& error) {
    AddFailure("model", error, dir, report);
    return false;
  }
}

void AddMissingWeights(const std::filesystem::path& dir, HealthReport* report) {
  const bool unfinished = std::filesystem::exists(dir / kJournalFile);
  report
      ->Add("weights", Verdict::kFail,
            unfinished ? "a packed container that is not finished"
                       : "neither a .safetensors file nor a packed container is here",
            unfinished ? "run the same 'thimble pack' command again: it continues where it stopped"
                       : "download the shards that model.safetensors.index.json names")
      .failure = ErrorCode::kBadModel;
}

std::string DescribeFiles(const PlannedModel& model) {
  if (!model.is_packed) {
    return fmt::format("{} shards, {}, every tensor in its place", model.files.size(),
                       FormatBytes(model.disk_bytes));
  }
  return fmt::format("packed container: {} files, {}, every extent in its place{}",
                     model.files.size(), FormatBytes(model.disk_bytes),
                     model.shares_extents ? "; synthetic, layers or experts share extents" : "");
}

}  // namespace

std::optional<PlannedModel> CheckModel(const std::filesystem::path& dir, HealthReport* report) {
  if (!CheckSmallFiles(dir, report)) return std::nullopt;
  if (!AnyWeights(dir)) {
    AddMissingWeights(dir, report);
    return std::nullopt;
  }
  std::optional<PlannedModel> model;
  try {
    model = PlannedModel::FromDirectory(dir);
  } catch (const Error& error) {
    AddFailure("weights", error, dir, report);
    return std::nullopt;
  }
  report->Add("weights", Verdict::kOk, DescribeFiles(*model)).figures = {
      {"shards", model->is_packed ? 0 : model->files.size()},
      {"files", model->files.size()},
      {"bytes", model->disk_bytes},
      {"packed", model->is_packed},
      {"shared_extents", model->shares_extents}};
  return model;
}

void CheckPace(const PlannedModel& model, const PlanRequest& request,
               const std::optional<double>& drive, HealthReport* report) {
  MemoryPlan plan;
  try {
    plan = PlanMemory(model.config, model.sizes, request);
  } catch (const Error& error) {
    report->Add("pace", Verdict::kFail, error.what(), "grant more memory").failure = error.code();
    return;
  }
  MachineRates rates = MeasureCompute(FormatsOf(model.config, model.sizes), request.num_threads);
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

}  // namespace thimble
