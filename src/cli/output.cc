#include "cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace thimble::cli {

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

void ProgressLine::Show(std::string_view what, size_t done, size_t total) {
  static const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const auto now = Clock::now();
  const auto pause = terminal ? std::chrono::milliseconds(100) : std::chrono::seconds(5);
  if (now - last_ < pause) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(done) / seconds;
  std::string line = fmt::format("{}: {} of {} tokens", what, done, total);
  if (done > 0) {
    line += fmt::format(", {:.3g} tokens/s, {} left", rate,
                        FormatSeconds(static_cast<double>(total - done) / rate));
  }
  if (terminal) {
    fmt::print(stderr, "\r\033[K{}", line);
    shown_ = true;
  } else {
    fmt::print(stderr, "{}\n", line);
  }
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

}  // namespace thimble::cli
