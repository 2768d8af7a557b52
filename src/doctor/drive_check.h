#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "doctor/health_report.h"

namespace thimble {

/// Measures the drive by the files given, or, where they are none or too small, by a file of
/// `probe_bytes` that is written to the current folder and gone afterwards; judges it. Returns
/// bytes a second, if they could be measured. An obstacle is a warning, not an error.
std::optional<double> CheckDrive(const std::vector<std::filesystem::path>& files,
                                 uint64_t probe_bytes, HealthReport* report);

}  // namespace thimble
