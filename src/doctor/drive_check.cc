#include "doctor/drive_check.h"

#include <fmt/format.h>

#include <string>

#include "base/byte_size.h"
#include "base/error.h"
#include "doctor/machine_facts.h"
#include "outlook/planned_model.h"

namespace thimble {
namespace {

constexpr uint64_t kSlowDrive = kGB;

// By the files where they are enough to measure by, otherwise by a probe file in the current
// folder.
DriveProbe ProbeFor(const std::vector<std::filesystem::path>& files, uint64_t probe_bytes,
                    std::string* source) {
  if (!files.empty()) {
    *source = "the model's files";
    DriveProbe probe = MeasureDrive(files);
    if (!probe.too_small) return probe;
  }
  *source = "a probe file in the current folder";
  const uint64_t free = ReadFileSystemFacts(".").free_bytes;
  if (free / 2 < probe_bytes) {
    throw Error(ErrorCode::kRuntime,
                fmt::format("a probe file of {} would take more than half of the {} that are free "
                            "here; free some space, or give --probe a smaller size",
                            FormatBytes(probe_bytes), FormatBytes(free)));
  }
  return MeasureDriveOf(".", probe_bytes);
}

}  // namespace

std::optional<double> CheckDrive(const std::vector<std::filesystem::path>& files,
                                 uint64_t probe_bytes, HealthReport* report) {
  std::string source;
  DriveProbe probe;
  try {
    probe = ProbeFor(files, probe_bytes, &source);
  } catch (const Error& error) {
    report->Add("drive", Verdict::kWarn, "not measured", error.what()).figures = {
        {"bytes_per_s", nullptr}};
    return std::nullopt;
  }
  if (!probe.bytes_per_s) {
    report
        ->Add("drive", Verdict::kWarn, fmt::format("not measured: {} ({})", probe.obstacle, source),
              "keep the weights, uncompressed, on a local drive that supports O_DIRECT, e.g. ext4 "
              "or xfs on NVMe")
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

}  // namespace thimble
