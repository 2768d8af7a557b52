#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/process_limits.h"

namespace thimble {
namespace {

// Linux transfers at most this much in one read; larger requests come back short.
constexpr size_t kMaxReadBytes = size_t{1} << 30;

[[noreturn]] void FailOpen(const std::filesystem::path& path, const std::string& reason) {
  throw Error(ErrorCode::kBadModel, fmt::format("cannot open {}: {}", path.string(), reason));
}

// A system that has no more to give is no fault of the file.
[[noreturn]] void FailOpen(const std::filesystem::path& path, int error) {
  std::string cause;
  if (error == EMFILE || error == ENFILE) {
    cause = ExplainFileLimits(ReadProcessLimits());
  } else if (error == ENOMEM) {
    cause = ExplainMemoryLimits(ReadProcessLimits());
  } else if (error != EIO) {
    FailOpen(path, std::string(std::strerror(error)));
  }
  throw Error(ErrorCode::kRuntime,
              fmt::format("cannot open {}: {}{}", path.string(), std::strerror(error), cause));
}

const char* NameOfKind(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

void RequireRegular(const std::filesystem::path& path, mode_t mode) {
  if (S_ISREG(mode)) return;
  FailOpen(path, fmt::format("expected a regular file, found {}", NameOfKind(mode)));
}

// The descriptor, or a negative errno. Only regular files are opened: opening a pipe would wait for
// its writer, and opening a device may do something to it.
int OpenDescriptor(const std::filesystem::path& path, int flags) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return -errno;
  RequireRegular(path, status.st_mode);
  // O_NONBLOCK: the path may have become a pipe since.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
  return descriptor < 0 ? -errno : descriptor;
}

// The size of an open regular file; closes any other.
uint64_t SizeOf(const std::filesystem::path& path, int descriptor) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    FailOpen(path, error);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    RequireRegular(path, status.st_mode);
  }
  // io_uring would give up reads that have to wait for the drive.
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
  return static_cast<uint64_t>(status.st_size);
}

}  // namespace

File File::Open(const std::filesystem::path& path) {
  const int descriptor = OpenDescriptor(path, 0);
  if (descriptor < 0) FailOpen(path, -descriptor);
  return File(path, descriptor, SizeOf(path, descriptor));
}

std::optional<File> File::OpenDirect(const std::filesystem::path& path) {
  const int descriptor = OpenDescriptor(path, O_DIRECT);
  if (descriptor == -EINVAL) return std::nullopt;
  if (descriptor < 0) FailOpen(path, -descriptor);
  File file(path, descriptor, SizeOf(path, descriptor));
  // Some file systems take the flag and refuse the reads.
  alignas(kPageBytes) std::array<std::byte, kPageBytes> page;
  if (::pread(descriptor, page.data(), page.size(), 0) < 0 && errno == EINVAL) return std::nullopt;
  return file;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

void File::ReadAt(uint64_t offset, size_t bytes, void* out) const {
  auto* to = static_cast<char*>(out);
  size_t done = 0;
  while (done < bytes) {
    const size_t want = std::min(bytes - done, kMaxReadBytes);
    const ssize_t got = ::pread(descriptor_, to + done, want, static_cast<off_t>(offset + done));
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0) {
      throw Error(ErrorCode::kRuntime, DescribeShortage(offset + done, offset + bytes));
    } else if (errno != EINTR) {
      throw Error(ErrorCode::kRuntime, DescribeFailure(offset + done, errno));
    }
  }
}

std::string File::DescribeFailure(uint64_t offset, int error) const {
  return "reading " + path_.string() + " at byte " + std::to_string(offset) +
         " failed: " + std::strerror(error) + "; check the drive and its cable, then run again";
}

std::string File::DescribeShortage(uint64_t offset, uint64_t end) const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) return DescribeFailure(offset, errno);
  const auto size_now = static_cast<uint64_t>(status.st_size);
  // All of the file is there, and still the drive gave nothing.
  if (size_now >= end) return DescribeFailure(offset, EIO);
  return path_.string() + " ends at byte " + std::to_string(size_now) + ", expected " +
         std::to_string(end - size_now) +
         " bytes more: it was shortened while in use, or is not fully downloaded";
}

std::string ReadTextFile(const std::filesystem::path& path, uint64_t max_bytes) {
  const File file = File::Open(path);
  if (file.size() > max_bytes) {
    throw Error(ErrorCode::kBadModel, path.string() + " has " + FormatBytes(file.size()) +
                                          ", expected at most " + FormatBytes(max_bytes));
  }
  std::string text(file.size(), '\0');
  file.ReadAt(0, text.size(), text.data());
  return text;
}

}  // namespace thimble
