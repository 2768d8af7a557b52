#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace thimble {

/// Writes to standard output at once, so that text appears as it is made. Throws
/// StandardOutputError where it cannot be written.
void Print(std::string_view text);

/// Standard output takes no more: the disk is full, the terminal is gone, the reader of a pipe has
/// closed it.
class StandardOutputError : public Error {
 public:
  explicit StandardOutputError(int error);
  /// The reader of a pipe wants no more, which is its right: programs end without a word.
  bool reader_has_gone() const { return reader_has_gone_; }

 private:
  bool reader_has_gone_;
};

/// Writes a note to standard error. One that cannot be written is dropped: it must not cost the
/// result.
void PrintNote(std::string_view text);
template <typename... Args>
void Note(fmt::format_string<Args...> format, Args&&... args) {
  PrintNote(fmt::format(format, std::forward<Args>(args)...));
}

/// All of standard input, at most `max_bytes`. Error(kUsage) beyond that, Error(kRuntime) where it
/// cannot be read.
std::string ReadStandardInput(uint64_t max_bytes);

/// Opens those of the descriptors 0, 1 and 2 that are closed to /dev/null. Otherwise the next file
/// to be opened would take their place, and be read as input or overwritten by output.
void OpenStandardDescriptors();

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
