#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/generation.h"

namespace thimble::cli {

struct ReportOptions {
  std::string stats_file;  // empty: none is written
  bool verbose = false;    // also print what memory was used for
};

/// Prints what a run took on standard error, and writes the same in full to the file of statistics
/// as JSON, if one is named.
void ReportRun(const Engine& engine, size_t prompt_tokens, const GenerationResult& result,
               const ReportOptions& options);

}  // namespace thimble::cli
