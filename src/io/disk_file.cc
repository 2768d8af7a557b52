#include "io/disk_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/error.h"
#include "base/process_limits.h"

namespace thimble {
namespace {

constexpr size_t kMaxTransferBytes = size_t{1} << 30;

[[noreturn]] void FailSystem(const std::string& what, int error) {
  std::string remedy;
  if (error == EFBIG) {
    remedy = ExplainFileSizeLimit(ReadProcessLimits());
  } else if (error == EMFILE || error == ENFILE) {
    remedy = ExplainFileLimits(ReadProcessLimits());
  } else if (error == ENOSPC || error == EDQUOT) {
    remedy = "; make room";
  } else {
    remedy = "; check the drive";
  }
  throw Error(ErrorCode::kRuntime, fmt::format("{}: {}{}, then run the same command again", what,
                                               std::strerror(error), remedy));
}

void SyncDirectory(const std::filesystem::path& dir) {
  const int descriptor = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) FailSystem("cannot open " + dir.string(), errno);
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Some file systems have no such thing, which is no failure of ours.
  if (result != 0 && error != EINVAL) FailSystem("cannot sync " + dir.string(), error);
}

std::filesystem::path ParentOf(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

}  // namespace

DiskFile::DiskFile(const std::filesystem::path& path, Cache cache) : path_(path) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC;
  if (cache == Cache::kBypass) descriptor_ = ::open(path.c_str(), kFlags | O_DIRECT, 0666);
  if (descriptor_ < 0) descriptor_ = ::open(path.c_str(), kFlags, 0666);
  if (descriptor_ < 0) Fail("open");
}

DiskFile::~DiskFile() { ::close(descriptor_); }

void DiskFile::Fail(const char* doing) const {
  FailSystem(std::string("cannot ") + doing + " " + path_.string(), errno);
}

uint64_t DiskFile::Size() const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) Fail("look at");
  return static_cast<uint64_t>(status.st_size);
}

void DiskFile::WriteAt(uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t want = std::min(bytes.size(), kMaxTransferBytes);
    const ssize_t put = ::pwrite(descriptor_, bytes.data(), want, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) Fail("write");
    bytes.remove_prefix(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
}

void DiskFile::ReadAt(uint64_t offset, size_t bytes, void* out) const {
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const size_t want = std::min(bytes, kMaxTransferBytes);
    const ssize_t got = ::pread(descriptor_, to, want, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Fail("read back");
    if (got == 0) {
      throw Error(ErrorCode::kRuntime, path_.string() + " was shortened while it was written; " +
                                           "remove it, then run the same command again");
    }
    to += got;
    bytes -= static_cast<size_t>(got);
    offset += static_cast<uint64_t>(got);
  }
}

void DiskFile::Truncate(uint64_t size) {
  if (::ftruncate(descriptor_, static_cast<off_t>(size)) != 0) Fail("cut");
}

void DiskFile::Sync() {
  if (::fdatasync(descriptor_) != 0) Fail("write");
}

void DiskFile::DropCache() const { ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }

bool DiskFile::TryLock() const { return ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0; }

std::filesystem::path PartialPath(const std::filesystem::path& path) {
  return path.string() + ".partial";
}

void Publish(const std::filesystem::path& path) {
  const std::filesystem::path partial = PartialPath(path);
  if (::rename(partial.c_str(), path.c_str()) != 0) {
    FailSystem("cannot rename " + partial.string() + " to " + path.string(), errno);
  }
  SyncDirectory(ParentOf(path));
}

void WriteWhole(const std::filesystem::path& path, std::string_view bytes) {
  {
    DiskFile file(PartialPath(path));
    file.Truncate(0);
    file.WriteAt(0, bytes);
    file.Sync();
  }
  Publish(path);
}

uint64_t FreeDiskBytes(const std::filesystem::path& dir) {
  struct statvfs status = {};
  if (::statvfs(dir.c_str(), &status) != 0) {
    FailSystem("cannot ask how much room " + dir.string() + " has", errno);
  }
  return uint64_t{status.f_bavail} * status.f_frsize;
}

}  // namespace thimble
