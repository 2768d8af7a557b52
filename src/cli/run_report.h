#pragma once

#include <cstddef>
#include <string>

#include "engine/generation.h"

namespace thimble::cli {

/// Prints what a run took on standard error; `verbose`: also what its memory was for.
void ReportRun(const Engine& engine, size_t prompt_tokens, const GenerationResult& result,
               bool verbose);

/// The same in full, as the JSON that --stats writes.
std::string RunStats(const Engine& engine, size_t prompt_tokens, const GenerationResult& result);

}  // namespace thimble::cli
