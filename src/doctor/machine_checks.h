#pragma once

#include <filesystem>

#include "doctor/health_report.h"
#include "doctor/machine_facts.h"

namespace thimble {

/// Judges the machine: processor and SIMD target, cores, memory, swap, memlock.
void CheckMachine(const MachineFacts& facts, HealthReport* report);

/// Judges the file system that holds `folder`.
void CheckFileSystem(const std::filesystem::path& folder, HealthReport* report);

}  // namespace thimble
