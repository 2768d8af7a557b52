#pragma once

#include <stdexcept>
#include <string>

namespace thimble {

/// What kind of failure an Error reports. The values are the exit codes of the `thimble` command.
enum class ErrorCode : int {
  kRuntime = 1,       // a read failed, a disk is full, an invariant broke
  kUsage = 2,         // the caller asked for something that makes no sense
  kBadModel = 3,      // the model's files are damaged, inconsistent or of an unsupported kind
  kOverBudget = 4,    // the memory granted is too small; the message names the smallest that works
  kInterrupted = 130  // cancelled by the user
};

/// The one exception of the library, thrown at open, parse, reserve and read boundaries.
/// The message stands alone: it names the file and tensor, what was expected, what was found, and
/// what to do about it.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// Throws Error(kRuntime) naming the failed condition and its place: an invariant of Thimble itself
/// broke. Never use it for bad input, which deserves a message of its own.
[[noreturn]] void FailCheck(const char* condition, const char* file, int line);

}  // namespace thimble

/// Guards an invariant, in release builds too.
#define THIMBLE_CHECK(condition)                            \
  do {                                                      \
    if (!(condition)) [[unlikely]] {                        \
      ::thimble::FailCheck(#condition, __FILE__, __LINE__); \
    }                                                       \
  } while (false)
