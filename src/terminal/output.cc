#include "terminal/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/byte_size.h"
#include "terminal/interrupt.h"

namespace thimble {
namespace {

bool OnTerminal() {
  static const bool terminal = ::isatty(STDERR_FILENO) == 1;
  return terminal;
}

// Of a descriptor that another program has made non-blocking.
void AwaitRoom(int descriptor) {
  pollfd waiting = {descriptor, POLLOUT, 0};
  ::poll(&waiting, 1, -1);
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

StandardOutputError::StandardOutputError(int error)
    : Error(ErrorCode::kRuntime,
            fmt::format("cannot write to standard output: {}", std::strerror(error))),
      reader_has_gone_(error == EPIPE) {}

void Print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(STDOUT_FILENO, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EAGAIN) {
      AwaitRoom(STDOUT_FILENO);
      continue;
    }
    if (put < 0) throw StandardOutputError(errno);
    text.remove_prefix(static_cast<size_t>(put));
  }
}

void PrintNote(std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(STDERR_FILENO, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return;
    text.remove_prefix(static_cast<size_t>(put));
  }
}

std::string ReadStandardInput(uint64_t max_bytes) {
  std::string text;
  std::array<char, size_t{1} << 16> chunk = {};
  while (true) {
    const ssize_t got = ::read(STDIN_FILENO, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR && !Interrupted()) continue;
    if (got < 0) {
      throw Error(ErrorCode::kRuntime,
                  fmt::format("cannot read standard input: {}", std::strerror(errno)));
    }
    if (got == 0) return text;
    text.append(chunk.data(), static_cast<size_t>(got));
    if (text.size() > max_bytes) {
      throw Error(ErrorCode::kUsage, fmt::format("standard input has more than {}, the maximum",
                                                 FormatBytes(max_bytes)));
    }
  }
}

void OpenStandardDescriptors() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number) {
    if (::fcntl(number, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is taken: this one. Without /dev, a folder takes the place.
    if (::open("/dev/null", O_RDWR) < 0) ::open("/", O_RDONLY | O_DIRECTORY);
  }
}

bool ProgressLine::IsDue() {
  const auto now = Clock::now();
  const auto pause = OnTerminal() ? std::chrono::milliseconds(100) : std::chrono::seconds(5);
  if (now - last_ < pause) return false;
  last_ = now;
  return true;
}

void ProgressLine::Put(const std::string& line) {
  if (OnTerminal()) {
    Note("\r\033[K{}", line);
    shown_ = true;
  } else {
    Note("{}\n", line);
  }
}

void ProgressLine::Show(std::string_view what, size_t done, size_t total) {
  if (!IsDue()) return;
  const double rate = static_cast<double>(done) / SecondsSince(start_);
  std::string line = fmt::format("{}: {} of {} tokens", what, done, total);
  if (done > 0) {
    line += fmt::format(", {:.3g} tokens/s, {} left", rate,
                        FormatSeconds(static_cast<double>(total - done) / rate));
  }
  Put(line);
}

void ProgressLine::ShowBytes(std::string_view what, uint64_t done, uint64_t total,
                             uint64_t skipped) {
  if (!IsDue()) return;
  std::string line = fmt::format("{}: {} of {}", what, FormatBytes(done), FormatBytes(total));
  if (done > skipped) {
    const double rate = static_cast<double>(done - skipped) / SecondsSince(start_);
    line += fmt::format(", {}/s, {} left", FormatBytes(static_cast<uint64_t>(rate)),
                        FormatSeconds(static_cast<double>(total - done) / rate));
  }
  Put(line);
}

void ProgressLine::Clear() {
  if (shown_) Note("\r\033[K");
  shown_ = false;
}

std::string FormatSeconds(double seconds) {
  if (seconds < 60) return fmt::format("{:.3g} s", seconds);
  const auto whole = static_cast<uint64_t>(seconds);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

}  // namespace thimble
