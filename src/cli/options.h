#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace thimble::cli {

template <typename T, typename Number>
void Assign(T* value, Number number) {
  *value = static_cast<T>(number);
}
template <typename T, typename Number>
void Assign(std::optional<T>* value, Number number) {
  *value = static_cast<T>(number);
}

/// Options with a value. Each refuses a value that is empty, malformed or out of range with a
/// message that names the option, what is expected and what was found, and returns itself, so that
/// more can be said about it. CLI11's own conversions take '' as 0, -1 as the largest number and
/// 010 as 8.
struct CountRange {
  uint64_t least = 0;
  uint64_t most = UINT64_MAX;
};
struct RealRange {
  double least = 0;
  double most = 1;
  bool above_least = false;  // the least itself is out of range
};
/// Tokens of a prompt, an answer or a context; models set lower limits.
inline constexpr CountRange kAnyTokens = {0, uint64_t{1} << 30};
inline constexpr CountRange kAnySize = {1, INT64_MAX};
inline constexpr CountRange kSomeTokens = {1, uint64_t{1} << 30};

CLI::Option* AddCount(CLI::App& app, const std::string& names, CountRange range,
                      std::function<void(uint64_t)> set, const std::string& help);
CLI::Option* AddReal(CLI::App& app, const std::string& names, RealRange range,
                     std::function<void(double)> set, const std::string& help);
/// Text that may not be empty; `type` is what --help calls it.
CLI::Option* AddText(CLI::App& app, const std::string& names, const std::string& type,
                     std::function<void(const std::string&)> set, const std::string& help);
/// A size such as 1.5G; what is typed is kept.
CLI::Option* AddSize(CLI::App& app, const std::string& names, CountRange range, std::string* typed,
                     const std::string& help);

/// The same for a variable of a type that takes the value.
template <typename T>
CLI::Option* AddCount(CLI::App& app, const std::string& names, CountRange range, T* value,
                      const std::string& help) {
  return AddCount(
      app, names, range, [value](uint64_t count) { Assign(value, count); }, help);
}
template <typename T>
CLI::Option* AddReal(CLI::App& app, const std::string& names, RealRange range, T* value,
                     const std::string& help) {
  return AddReal(
      app, names, range, [value](double real) { Assign(value, real); }, help);
}
/// `value` is a text or a path.
template <typename T>
CLI::Option* AddText(CLI::App& app, const std::string& names, const std::string& type, T* value,
                     const std::string& help) {
  return AddText(
      app, names, type, [value](const std::string& text) { *value = text; }, help);
}

/// The same for an option that may be given several times.
template <typename T>
CLI::Option* AddTexts(CLI::App& app, const std::string& names, const std::string& type,
                      std::vector<T>* values, const std::string& help) {
  return AddText(
             app, names, type, [values](const std::string& text) { values->emplace_back(text); },
             help)
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false);
}

/// Options that several commands share, spelled and explained the same everywhere.
struct ModelOptions {
  std::filesystem::path model;  // empty: the embedded model
  std::string memory;           // as typed; empty: what the machine has, less a reserve
  size_t threads = 0;           // 0: physical cores
  LatentFormat latents = LatentFormat::kF32;
  ReadMode read_mode = ReadMode::kAuto;
  Pinning pinning = Pinning::kAuto;
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
/// --seed, --top-k, --top-p, --min-p and --repeat-penalty; the defaults are those in `sampling`.
/// --temp is each command's own.
void AddSamplingOptions(CLI::App& app, SamplingOptions* sampling);
inline constexpr RealRange kTemperatures = {0, 1000};

/// The text of a file that the user named, or of standard input for "-". Error(kUsage) where it
/// cannot be read.
std::string ReadUserText(const std::string& file);

/// Text that a command reads may have so many bytes.
inline constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;

}  // namespace thimble::cli
