#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace thimble {

/// Writes to standard output at once, so that text appears as it is made. Error(kRuntime) where it
/// cannot be written, e.g. since the disk is full.
void Print(std::string_view text);

/// A file that is there whole or not at all: written beside its place, and moved there by Commit.
class OutputFile {
 public:
  /// Error(kRuntime) naming the file and the reason.
  explicit OutputFile(const std::filesystem::path& path);
  /// Without Commit, what was written is removed.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void Write(const void* data, size_t bytes);
  void Commit();

 private:
  [[noreturn]] void Fail();

  std::filesystem::path path_;
  std::filesystem::path partial_;
  std::FILE* file_ = nullptr;
};

/// One line of progress on standard error: renewed in place on a terminal, a line every few seconds
/// elsewhere.
class ProgressLine {
 public:
  /// Shows `what`, e.g. "reading the prompt", with done / total tokens, the rate and the time left.
  void Show(std::string_view what, size_t done, size_t total);
  /// The same for bytes, of which `skipped` were done before this work began.
  void ShowBytes(std::string_view what, uint64_t done, uint64_t total, uint64_t skipped);
  /// Clears the line, so that other output can follow.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;
  // False where the last line is too recent for another one.
  bool IsDue();
  void Put(const std::string& line);

  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
  bool shown_ = false;
};

/// "3.2 s", "4 min 10 s", "2 h 5 min".
std::string FormatSeconds(double seconds);

}  // namespace thimble
