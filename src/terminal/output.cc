#include "terminal/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/byte_size.h"
#include "base/error.h"

namespace thimble {
namespace {

bool OnTerminal() {
  static const bool terminal = ::isatty(STDERR_FILENO) == 1;
  return terminal;
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void Print(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return;
  throw Error(ErrorCode::kRuntime,
              fmt::format("cannot write to standard output: {}", std::strerror(errno)));
}

OutputFile::OutputFile(const std::filesystem::path& path)
    : path_(path), partial_(path.string() + ".partial"), file_(std::fopen(partial_.c_str(), "wb")) {
  if (file_ == nullptr) Fail();
}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::error_code ignored;
  std::filesystem::remove(partial_, ignored);
}

void OutputFile::Write(const void* data, size_t bytes) {
  if (std::fwrite(data, 1, bytes, file_) != bytes) Fail();
}

void OutputFile::Commit() {
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) Fail();
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) Fail();
  std::fclose(file_);
  file_ = nullptr;
}

void OutputFile::Fail() {
  throw Error(ErrorCode::kRuntime, fmt::format("cannot write {}: {}; nothing was left there",
                                               path_.string(), std::strerror(errno)));
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
    fmt::print(stderr, "\r\033[K{}", line);
    shown_ = true;
  } else {
    fmt::print(stderr, "{}\n", line);
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
  if (shown_) fmt::print(stderr, "\r\033[K");
  shown_ = false;
}

std::string FormatSeconds(double seconds) {
  if (seconds < 60) return fmt::format("{:.3g} s", seconds);
  const auto whole = static_cast<uint64_t>(seconds);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

}  // namespace thimble
