#include "cli/options.h"

#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>

#include "base/byte_size.h"
#include "base/error.h"
#include "io/file.h"
#include "memory/process_memory.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

constexpr size_t kMaxThreads = 1024;
constexpr uint64_t kMaxTextBytes = kGiB;

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

}  // namespace

std::string CheckSize(const std::string& text) {
  const auto bytes = ParseByteSize(text);
  if (bytes && *bytes > 0) return {};
  return "expected a size like 1.5G, 512M or 8GiB, found '" + text + "'";
}

std::optional<uint64_t> ModelOptions::MemoryBytes() const {
  if (memory.empty()) return std::nullopt;
  if (!granted) {
    const MemoryGrant grant = GrantMemory(ParseByteSize(memory).value_or(0), ReadMemoryCeiling());
    if (!grant.warning.empty()) fmt::print(stderr, "warning: --memory: {}\n", grant.warning);
    granted = grant.bytes;
  }
  return granted;
}

EngineOptions ModelOptions::ForEngine() const {
  EngineOptions engine;
  engine.memory_bytes = MemoryBytes();
  engine.num_threads = threads;
  engine.latents = latents;
  engine.read_mode = read_mode;
  engine.check = check;
  engine.preload = preload;
  if (check || preload) engine.on_load = LoadProgress();
  return engine;
}

void AddModelOption(CLI::App& app, std::filesystem::path* model) {
  app.add_option(
         "-m,--model", *model,
         "Model directory, as downloaded or packed (default: the small model that comes with "
         "Thimble)")
      ->type_name("DIR");
}

void AddEngineOptions(CLI::App& app, ModelOptions* options) {
  AddModelOption(app, &options->model);
  AddThreadsOption(app, &options->threads);
  AddMemoryOption(app, &options->memory);
  AddLatentsOption(app, &options->latents);
  AddReadModeOption(app, &options->read_mode);
  app.add_flag("--preload", options->preload,
               "Read what the memory lets stay before the first token, not as it is needed");
  app.add_flag("--check", options->check,
               "Compare a packed model with its checksums: the trunk first, each expert as it is "
               "read");
}

void AddThreadsOption(CLI::App& app, size_t* threads) {
  app.add_option("-t,--threads", *threads,
                 "Compute threads (default: the physical cores this process may use)")
      ->type_name("N")
      ->check(CLI::Range(size_t{1}, kMaxThreads));
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
  app.add_option("--memory", *memory,
                 "Most memory that the whole process may use, e.g. 1.5G or 8GiB (default: what the "
                 "machine has free, less a reserve)")
      ->type_name("SIZE")
      ->check(CheckSize);
}

std::string ReadUserText(const std::string& file) {
  if (file == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  try {
    return ReadTextFile(file, kMaxTextBytes);
  } catch (const Error& error) {
    throw Error(ErrorCode::kUsage, error.what());
  }
}

}  // namespace thimble::cli
