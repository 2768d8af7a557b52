#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "doctor/health_report.h"
#include "doctor/machine_facts.h"

namespace thimble {

/// Judges the machine: processor and SIMD target, cores, memory, swap, locked memory, limits of the
/// process. `wanted_bytes` is the budget that was asked for, if one was.
void CheckMachine(const MachineFacts& facts, const std::optional<uint64_t>& wanted_bytes,
                  HealthReport* report);

/// Judges the file system that holds `folder`.
void CheckFileSystem(const std::filesystem::path& folder, HealthReport* report);

}  // namespace thimble
