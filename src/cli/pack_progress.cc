#include "cli/pack_progress.h"

#include <fmt/format.h>

#include <utility>

#include "base/byte_size.h"
#include "terminal/interrupt.h"

namespace thimble::cli {

PackProgress::PackProgress(std::string what) : what_(std::move(what)) { CatchInterrupts(); }

bool PackProgress::OnProgress(uint64_t done, uint64_t total, uint64_t skipped) {
  line_.ShowBytes(what_, done, total, skipped);
  if (!Interrupted()) return true;
  line_.Clear();
  return false;
}

std::string PackProgress::Summary(uint64_t bytes) const {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return fmt::format("{} in {} ({}/s)", FormatBytes(bytes), FormatSeconds(seconds),
                     FormatBytes(static_cast<uint64_t>(static_cast<double>(bytes) / seconds)));
}

void AddRawOption(CLI::App& app, WriteOptions* options) {
  app.add_flag(
      "--raw", options->raw,
      "Store every tensor as it is, instead of coded without loss: the trunk in about 71 % "
      "of its size, MXFP4 experts in about 95 %");
}

void ReportPack(const PackResult& result, const std::filesystem::path& dir,
                const PackProgress& progress) {
  if (result.outcome == WriteOutcome::kAlreadyThere) {
    Print(fmt::format("{} is complete already: {} files, {}\n", dir.string(), result.files,
                      FormatBytes(result.bytes)));
    return;
  }
  Print(fmt::format("{}: {} files, {}, written and read back\n", dir.string(), result.files,
                    progress.Summary(result.bytes)));
  if (result.bytes < result.plain_bytes) {
    Print(fmt::format("the same stored plain: {}\n", FormatBytes(result.plain_bytes)));
  }
  if (result.losses.empty()) return;
  Print(fmt::format("lossy: relative error of the weights\n  {:<12} {:>9} {:>9}\n", "", "trunk",
                    "experts"));
  const auto shown = [](const WeightLoss& loss) {
    return loss.weights == 0 ? std::string("-") : fmt::format("{:.3f} %", 100 * loss.Relative());
  };
  for (const LayerLoss& loss : result.losses) {
    Print(fmt::format("  {:<12} {:>9} {:>9}\n", loss.name, shown(loss.trunk), shown(loss.experts)));
  }
}

}  // namespace thimble::cli
