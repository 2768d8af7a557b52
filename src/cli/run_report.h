#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/generation.h"

namespace thimble::cli {

/// Prints what a run took on standard error, and writes the same in full to `stats_file` as JSON,
/// if one is named.
void ReportRun(const Engine& engine, size_t prompt_tokens, const GenerationResult& result,
               const std::string& stats_file);

}  // namespace thimble::cli
