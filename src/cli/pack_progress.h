#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "pack/pack.h"
#include "terminal/output.h"

namespace thimble::cli {

/// Shows long work on bytes as it goes on, and stops it where the user asks to.
class PackProgress : public PackObserver {
 public:
  /// `what` is being done. From now on Ctrl-C only stops the work.
  explicit PackProgress(std::string what);
  bool OnProgress(uint64_t done, uint64_t total, uint64_t skipped) override;
  void Clear() { line_.Clear(); }
  /// "12.3 GB in 40 s (308 MB/s)", of `bytes` done since the start.
  std::string Summary(uint64_t bytes) const;

 private:
  std::string what_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  ProgressLine line_;
};

/// Adds --raw.
void AddRawOption(CLI::App& app, WriteOptions* options);

/// Prints what a pack or synth has made in `dir`.
void ReportPack(const PackResult& result, const std::filesystem::path& dir,
                const PackProgress& progress);

}  // namespace thimble::cli
