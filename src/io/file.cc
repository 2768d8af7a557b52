#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/byte_size.h"
#include "base/error.h"

namespace thimble {
namespace {

// Linux transfers at most this much in one read; larger requests come back short.
constexpr size_t kMaxReadBytes = size_t{1} << 30;

[[noreturn]] void FailOpen(const std::filesystem::path& path, const std::string& reason) {
  throw Error(ErrorCode::kBadModel, "cannot open " + path.string() + ": " + reason);
}

}  // namespace

File File::Open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) FailOpen(path, std::strerror(errno));
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    FailOpen(path, std::strerror(error));
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    FailOpen(path, S_ISDIR(status.st_mode) ? "it is a directory, expected a file"
                                           : "it is not a regular file");
  }
  return File(path, descriptor, static_cast<uint64_t>(status.st_size));
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
      throw Error(ErrorCode::kRuntime,
                  path_.string() + " ends at byte " + std::to_string(offset + done) +
                      ", expected " + std::to_string(bytes - done) +
                      " bytes more: it was shortened while in use, or is not fully downloaded");
    } else if (errno != EINTR) {
      throw Error(ErrorCode::kRuntime, "reading " + path_.string() + " at byte " +
                                           std::to_string(offset + done) +
                                           " failed: " + std::strerror(errno) +
                                           "; check the drive and its cable, then run again");
    }
  }
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
