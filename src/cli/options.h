#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/engine.h"

namespace thimble::cli {

/// Options that several commands share, spelled and explained the same everywhere.
struct ModelOptions {
  std::filesystem::path model;  // empty: the embedded model
  std::string memory;           // as typed; empty: what the machine has, less a reserve
  size_t threads = 0;           // 0: physical cores
  LatentFormat latents = LatentFormat::kF32;
  ReadMode read_mode = ReadMode::kAuto;
  bool check = false;
  bool preload = false;
  mutable std::optional<uint64_t> granted;  // of `memory`, once it was asked for

  /// What GrantMemory makes of `memory`; absent where that is empty. Its warning goes to standard
  /// error, the first time.
  std::optional<uint64_t> MemoryBytes() const;
  /// An engine's options as far as these say; the rest as by default.
  EngineOptions ForEngine() const;
};

void AddModelOption(CLI::App& app, std::filesystem::path* model);
/// --threads, of the compute.
void AddThreadsOption(CLI::App& app, size_t* threads);
/// --memory; what is typed is kept, once it is known to be a size.
void AddMemoryOption(CLI::App& app, std::string* memory);
/// --kv, how the latents of a context are stored.
void AddLatentsOption(CLI::App& app, LatentFormat* latents);
void AddEngineOptions(CLI::App& app, ModelOptions* options);

/// The text of a file that the user named, or of standard input for "-". Error(kUsage) where it
/// cannot be read.
std::string ReadUserText(const std::string& file);

/// A check of CLI11's for options that take a size: empty, or what was expected.
std::string CheckSize(const std::string& text);

}  // namespace thimble::cli
