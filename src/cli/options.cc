#include "cli/options.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "base/byte_size.h"
#include "base/error.h"
#include "io/file.h"
#include "memory/process_memory.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

constexpr size_t kMaxThreads = 1024;

// Progress on standard error while a model is opened: a line for each kind of work.
class LoadProgress {
 public:
  void operator()(const char* what, uint64_t done, uint64_t total) {
    if (Interrupted()) throw Error(ErrorCode::kInterrupted, "stopped while the model was opened");
    if (line_ == nullptr || what_ != what) {
      what_ = what;
      line_ = std::make_shared<ProgressLine>();
    }
    line_->ShowBytes(what_, done, total, 0);
    if (done == total) line_->Clear();
  }

 private:
  std::string what_;
  std::shared_ptr<ProgressLine> line_;
};

// An option with one value. `take` uses it and returns nothing, or what was expected instead.
CLI::Option* AddValue(CLI::App& app, const std::string& names, const std::string& help,
                      std::function<std::string(const std::string&)> take) {
  const std::string name = names.substr(names.find_last_of(',') + 1);
  return app.add_option(
      names,
      [take = std::move(take), name](const CLI::results_t& values) {
        for (const std::string& value : values) {
          const std::string expected = take(value);
          if (expected.empty()) continue;
          throw CLI::ValidationError(name, fmt::format("expected {}, found '{}'", expected, value));
        }
        return true;
      },
      help);
}

// All of `text` as a number.
template <typename T>
bool ParseWhole(const std::string& text, T* number) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && rest == end;
}

void AddReadModeOption(CLI::App& app, ReadMode* mode) {
  static const std::map<std::string, ReadMode> modes = {{"auto", ReadMode::kAuto},
                                                        {"direct", ReadMode::kDirect},
                                                        {"buffered", ReadMode::kBuffered},
                                                        {"mmap", ReadMode::kMapped}};
  app.add_option_function<std::string>(
         "--io", [mode](const std::string& name) { *mode = modes.at(name); },
         "Read weights past the page cache (direct), through it (buffered), map its own pages "
         "(mmap), or small models buffered and others direct (default: auto); changes the speed, "
         "never the text")
      ->type_name("MODE")
      ->check(CLI::IsMember(modes));
}

void AddPinningOption(CLI::App& app, Pinning* pinning) {
  static const std::map<std::string, Pinning> modes = {
      {"auto", Pinning::kAuto}, {"on", Pinning::kOn}, {"off", Pinning::kOff}};
  app.add_option_function<std::string>(
         "--pin", [pinning](const std::string& name) { *pinning = modes.at(name); },
         "Bind compute threads to physical cores: always (on), never (off), or on machines with "
         "several memory nodes whose cores no other process needs (default: auto); changes the "
         "speed, never the text")
      ->type_name("MODE")
      ->check(CLI::IsMember(modes));
}

}  // namespace

CLI::Option* AddText(CLI::App& app, const std::string& names, const std::string& type,
                     std::function<void(const std::string&)> set, const std::string& help) {
  return AddValue(app, names, help,
                  [set = std::move(set), type](const std::string& text) {
                    if (text.empty()) return fmt::format("{} not to be empty", type);
                    set(text);
                    return std::string();
                  })
      ->type_name(type);
}

CLI::Option* AddCount(CLI::App& app, const std::string& names, CountRange range,
                      std::function<void(uint64_t)> set, const std::string& help) {
  return AddValue(app, names, help,
                  [set = std::move(set), range](const std::string& text) {
                    uint64_t count = 0;
                    if (!ParseWhole(text, &count) || count < range.least || count > range.most) {
                      return fmt::format("a whole number from {} to {}", range.least, range.most);
                    }
                    set(count);
                    return std::string();
                  })
      ->type_name("N");
}

CLI::Option* AddReal(CLI::App& app, const std::string& names, RealRange range,
                     std::function<void(double)> set, const std::string& help) {
  return AddValue(app, names, help,
                  [set = std::move(set), range](const std::string& text) {
                    double real = 0;
                    // NaN compares false with everything.
                    const bool is_inside =
                        ParseWhole(text, &real) && real <= range.most &&
                        (range.above_least ? real > range.least : real >= range.least);
                    if (!is_inside) {
                      return range.above_least
                                 ? fmt::format("a number above {} and up to {}", range.least,
                                               range.most)
                                 : fmt::format("a number from {} to {}", range.least, range.most);
                    }
                    set(real);
                    return std::string();
                  })
      ->type_name("X");
}

CLI::Option* AddSize(CLI::App& app, const std::string& names, CountRange range, std::string* typed,
                     const std::string& help) {
  return AddValue(app, names, help,
                  [typed, range](const std::string& text) {
                    const auto bytes = ParseByteSize(text);
                    if (!bytes || *bytes < range.least || *bytes > range.most) {
                      return range.most == kAnySize.most
                                 ? std::string("a size like 1.5G, 512M or 8GiB, more than 0")
                                 : fmt::format("a size like 1.5G, 512M or 8GiB, from {} to {}",
                                               FormatBytes(range.least), FormatBytes(range.most));
                    }
                    *typed = text;
                    return std::string();
                  })
      ->type_name("SIZE");
}

std::optional<uint64_t> ModelOptions::MemoryBytes() const {
  if (memory.empty()) return std::nullopt;
  if (!granted) {
    const MemoryGrant grant = GrantMemory(ParseByteSize(memory).value_or(0), ReadMemoryCeiling());
    if (!grant.warning.empty()) Note("warning: --memory: {}\n", grant.warning);
    granted = grant.bytes;
  }
  return granted;
}

EngineOptions ModelOptions::ForEngine() const {
  EngineOptions engine;
  engine.memory_bytes = MemoryBytes();
  engine.num_threads = threads;
  engine.pinning = pinning;
  engine.latents = latents;
  engine.read_mode = read_mode;
  engine.check = check;
  engine.preload = preload;
  if (check || preload) engine.on_load = LoadProgress();
  return engine;
}

void AddModelOption(CLI::App& app, std::filesystem::path* model) {
  AddText(app, "-m,--model", "DIR", model,
          "Model directory, as downloaded or packed (default: the small model that comes with "
          "Thimble)");
}

void AddEngineOptions(CLI::App& app, ModelOptions* options) {
  AddModelOption(app, &options->model);
  AddThreadsOption(app, &options->threads);
  AddMemoryOption(app, &options->memory);
  AddLatentsOption(app, &options->latents);
  AddReadModeOption(app, &options->read_mode);
  AddPinningOption(app, &options->pinning);
  app.add_flag("--preload", options->preload,
               "Read what the memory lets stay before the first token, not as it is needed");
  app.add_flag("--check", options->check,
               "Compare a packed model with its checksums: the trunk first, each expert as it is "
               "read");
}

void AddThreadsOption(CLI::App& app, size_t* threads) {
  AddCount(app, "-t,--threads", {1, kMaxThreads}, threads,
           "Compute threads (default: the physical cores this process may use)");
}

void AddLatentsOption(CLI::App& app, LatentFormat* latents) {
  static const std::map<std::string, LatentFormat> formats = {
      {"f32", LatentFormat::kF32}, {"bf16", LatentFormat::kBF16}, {"fp8", LatentFormat::kFP8}};
  app.add_option_function<std::string>(
         "--kv", [latents](const std::string& name) { *latents = formats.at(name); },
         "How the attention's cache stores a context: f32, bf16 in half the memory, fp8 in a "
         "quarter; the last two change the logits a little (default: f32)")
      ->type_name("FORMAT")
      ->check(CLI::IsMember(formats));
}

void AddMemoryOption(CLI::App& app, std::string* memory) {
  AddSize(app, "--memory", kAnySize, memory,
          "Maximum memory of the whole process, e.g. 1.5G or 8GiB (default: what the machine has "
          "free, less a reserve)");
}

void AddSamplingOptions(CLI::App& app, SamplingOptions* sampling) {
  AddCount(app, "-s,--seed", {}, &sampling->seed,
           "Seed of the sampling: the same seed gives the same text (default: 0)");
  AddCount(app, "--top-k", {0, UINT32_MAX}, &sampling->top_k,
           "Sample from the N likeliest tokens only; 0: from all (default: 0)");
  AddReal(app, "--top-p", {0, 1, true}, &sampling->top_p,
          fmt::format("Sample from the likeliest tokens that together reach probability X "
                      "(default: {})",
                      sampling->top_p));
  AddReal(app, "--min-p", {0, 1}, &sampling->min_p,
          "Sample from tokens at least X times as likely as the likeliest (default: 0)");
  AddReal(app, "--repeat-penalty", {0, 1000, true}, &sampling->repeat_penalty,
          "Above 1: make tokens that occurred before less likely (default: 1)");
}

std::string ReadUserText(const std::string& file) {
  if (file == "-") return ReadStandardInput(kMaxTextBytes);
  try {
    return ReadTextFile(file, kMaxTextBytes);
  } catch (const Error& error) {
    throw Error(ErrorCode::kUsage, error.what());
  }
}

}  // namespace thimble::cli
