#include "io/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstring>
#include <optional>
#include <random>
#include <system_error>
#include <vector>

#include "base/byte_size.h"
#include "base/error.h"

namespace thimble {
namespace {

constexpr int kMaxLinks = 40;  // as the kernel's
constexpr size_t kMaxWriteBytes = size_t{1} << 30;
constexpr size_t kCopyBytes = size_t{1} << 20;
constexpr mode_t kPermissions = 07777;

// Names of hidden files, where a signal handler can read them. Few are open at a time.
struct HiddenName {
  std::atomic<bool> used = false;
  std::array<char, PATH_MAX> path = {};
};
std::array<HiddenName, 8> hidden_names;

void NoteHidden(const std::filesystem::path& path) {
  if (path.native().size() >= PATH_MAX) return;
  for (HiddenName& name : hidden_names) {
    if (name.used) continue;
    name.path[path.native().copy(name.path.data(), PATH_MAX - 1)] = '\0';
    name.used = true;
    return;
  }
}

void ForgetHidden(const std::filesystem::path& path) {
  for (HiddenName& name : hidden_names) {
    if (name.used && path == name.path.data()) name.used = false;
  }
}

// No signal ends the process between two steps that belong together.
class SignalsHeldBack {
 public:
  SignalsHeldBack() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsHeldBack() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeldBack(const SignalsHeldBack&) = delete;
  SignalsHeldBack& operator=(const SignalsHeldBack&) = delete;

 private:
  sigset_t before_;
};

class ScopedDescriptor {
 public:
  explicit ScopedDescriptor(int number) : number_(number) {}
  ~ScopedDescriptor() { ::close(number_); }
  ScopedDescriptor(const ScopedDescriptor&) = delete;
  ScopedDescriptor& operator=(const ScopedDescriptor&) = delete;

 private:
  const int number_;
};

std::filesystem::path FolderOf(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

std::filesystem::path NewHiddenName(const std::filesystem::path& target) {
  return FolderOf(target) / fmt::format(".thimble-{:08x}.tmp", std::random_device()());
}

// N of /proc/PID/fd/N and /proc/PID/task/TID/fd/N, of this process. Such a link leads to an open
// file, not to a name.
std::optional<int> DescriptorOf(const std::filesystem::path& path) {
  const std::string folder = path.parent_path().string();
  if (!folder.starts_with(fmt::format("/proc/{}/", ::getpid())) || !folder.ends_with("/fd")) {
    return std::nullopt;
  }
  const std::string name = path.filename().string();
  int number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

// Standard output or error, where that is the file of `status`: moving another file to its name
// would leave what is printed in a file without a name.
std::optional<int> StandardDescriptorOf(const struct stat& status) {
  for (const int number : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat standard = {};
    if (::fstat(number, &standard) == 0 && standard.st_dev == status.st_dev &&
        standard.st_ino == status.st_ino) {
      return number;
    }
  }
  return std::nullopt;
}

// A copy of an open descriptor that can be written, or a negative errno.
int Duplicate(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0) return -errno;
  if ((flags & O_ACCMODE) == O_RDONLY) return -EBADF;
  const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  return copy < 0 ? -errno : copy;
}

// Owner and permissions of `status` for an open file. False where the owner cannot be set.
bool GiveAttributes(int descriptor, const struct stat& status) {
  // The owner first: a change of owner clears the set-id bits.
  if (::fchown(descriptor, status.st_uid, status.st_gid) != 0) return false;
  ::fchmod(descriptor, status.st_mode & kPermissions);  // fails where there are no permissions
  return true;
}

void SyncFolder(const std::filesystem::path& folder) {
  // The result is in its place: a folder that cannot be synced is no reason to call it lost.
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path, Accept accept)
    : path_(path), accept_(accept) {
  if (path.empty()) throw Error(ErrorCode::kUsage, "a file to write has an empty name");
  try {
    OpenTarget();
  } catch (...) {
    Close();
    throw;
  }
}

OutputFile::~OutputFile() { Close(); }

void OutputFile::Close() {
  RemoveHidden();
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void OutputFile::Fail(int error) const {
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  const char* remedy = is_full           ? "; make room, or name another place"
                       : error == ENOENT ? "; make its folder, or name another place"
                       : error == EPIPE  ? "; its reader has gone"
                                         : "; name another place";
  throw Error(ErrorCode::kRuntime,
              fmt::format("cannot write {}: {}{}", path_.string(), std::strerror(error), remedy));
}

void OutputFile::Refuse(std::string_view what) const {
  throw Error(
      ErrorCode::kUsage,
      fmt::format("cannot write {}: it is {}; name {}", path_.string(), what,
                  accept_ == Accept::kAnything ? "a file, a pipe or a terminal"
                                               : "a regular file, or one that is not there"));
}

void OutputFile::OpenTarget() {
  target_ = path_;
  for (int links = 0;; ++links) {
    if (links == kMaxLinks) Fail(ELOOP);
    if (target_.filename().empty()) Refuse("a directory");
    std::error_code error;
    const auto folder = std::filesystem::canonical(FolderOf(target_), error);
    if (error) Fail(error.value());
    target_ = folder / target_.filename();
    if (const auto number = DescriptorOf(target_)) {
      return OpenDescriptor(*number, "a descriptor of this process");
    }
    const auto next = std::filesystem::read_symlink(target_, error);
    if (error) break;  // not a link
    target_ = next.is_absolute() ? next : folder / next;
  }
  struct stat status = {};
  if (::lstat(target_.c_str(), &status) != 0) {
    if (errno != ENOENT) Fail(errno);
    return OpenTemporary();
  }
  const auto standard = StandardDescriptorOf(status);
  if (standard && S_ISREG(status.st_mode)) {
    return OpenDescriptor(*standard, "where standard output or error goes");
  }
  OpenExisting(status);
}

void OutputFile::OpenDescriptor(int number, std::string_view what) {
  if (accept_ == Accept::kFilesOnly) Refuse(what);
  const int copy = Duplicate(number);
  if (copy < 0) Fail(-copy);
  descriptor_ = copy;
}

void OutputFile::OpenExisting(const struct stat& status) {
  const mode_t mode = status.st_mode;
  if (S_ISDIR(mode)) Refuse("a directory");
  if (S_ISBLK(mode)) Refuse("a drive, whose contents would be lost");
  if (S_ISSOCK(mode)) Refuse("a socket");
  const bool is_file = S_ISREG(mode);
  if (!is_file && accept_ == Accept::kFilesOnly) {
    Refuse(S_ISFIFO(mode) ? "a pipe" : "a device");
  }
  // Who may not write the file may not replace it either.
  descriptor_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (descriptor_ < 0) Fail(errno);
  if (!is_file) return;
  const int existing = descriptor_;
  try {
    OpenTemporary();
    ::close(existing);
  } catch (const Error&) {
    descriptor_ = existing;
    truncates_ = true;
    return;
  }
  in_place_ = status.st_nlink > 1 || !GiveAttributes(descriptor_, status);
}

void OutputFile::OpenTemporary() {
  const std::filesystem::path folder = FolderOf(target_);
  const int nameless = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  if (nameless >= 0 && ::access(fmt::format("/proc/self/fd/{}", nameless).c_str(), F_OK) == 0) {
    descriptor_ = nameless;
    temporary_ = true;
    return;
  }
  if (nameless >= 0) ::close(nameless);  // without /proc it could never get a name
  OpenHidden();
}

void OutputFile::OpenHidden() {
  SignalsHeldBack held_back;
  hidden_ = NewHiddenName(target_);
  const int hidden = ::open(hidden_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (hidden < 0) {
    const int error = errno;
    hidden_.clear();
    Fail(error);
  }
  NoteHidden(hidden_);
  descriptor_ = hidden;
  temporary_ = true;
}

void OutputFile::Put(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor, bytes.data(), std::min(bytes.size(), kMaxWriteBytes));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) Fail(errno);
    bytes.remove_prefix(static_cast<size_t>(put));
  }
}

void OutputFile::Write(std::string_view bytes) {
  complete_ = false;
  if (truncates_ && ::ftruncate(descriptor_, 0) != 0) Fail(errno);
  truncates_ = false;
  Put(descriptor_, bytes);
  complete_ = true;
}

void OutputFile::RequireRoom(uint64_t bytes) const {
  struct statvfs drive = {};
  // Some file systems do not know their size, and say 0.
  if (!temporary_ || ::fstatvfs(descriptor_, &drive) != 0 || drive.f_blocks == 0) return;
  const uint64_t blocks = ::geteuid() == 0 ? drive.f_bfree : drive.f_bavail;
  const uint64_t free = blocks * drive.f_frsize;
  if (bytes <= free) return;
  throw Error(ErrorCode::kRuntime,
              fmt::format("cannot write {}: it may take {}, its drive has {} free; make room, or "
                          "name another place",
                          path_.string(), FormatBytes(bytes), FormatBytes(free)));
}

void OutputFile::Commit() {
  THIMBLE_CHECK(complete_ && descriptor_ >= 0);
  if (truncates_) Write("");
  struct stat status = {};
  const bool is_file = ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  if (is_file && ::fsync(descriptor_) != 0 && errno != EINVAL) Fail(errno);
  if (temporary_) {
    if (!in_place_) Link();
    if (in_place_) Overwrite();
    SyncFolder(FolderOf(target_));
  }
  Close();
}

// Gives the temporary file a name, if it has none, and moves it to the target.
void OutputFile::Link() {
  const SignalsHeldBack held_back;
  const std::filesystem::path name = hidden_.empty() ? NewHiddenName(target_) : hidden_;
  if (hidden_.empty()) {
    const std::string open_file = fmt::format("/proc/self/fd/{}", descriptor_);
    if (::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      Fail(errno);
    }
  }
  if (::rename(name.c_str(), target_.c_str()) == 0) {
    ForgetHidden(hidden_);
    hidden_.clear();
    return;
  }
  const int error = errno;
  if (hidden_.empty()) ::unlink(name.c_str());
  if (error != EBUSY) Fail(error);
  in_place_ = true;  // a mount point cannot be replaced, but its contents can
}

void OutputFile::Overwrite() {
  const int existing = ::open(target_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY);
  if (existing < 0) Fail(errno);
  const ScopedDescriptor closed_at_the_end(existing);
  EachChunk([&](std::string_view chunk) { Put(existing, chunk); });
  if (::fsync(existing) != 0) Fail(errno);
}

void OutputFile::EachChunk(const std::function<void(std::string_view)>& take) {
  std::vector<char> chunk(kCopyBytes);
  off_t offset = 0;
  while (true) {
    const ssize_t got = ::pread(descriptor_, chunk.data(), chunk.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Fail(errno);
    if (got == 0) return;
    take({chunk.data(), static_cast<size_t>(got)});
    offset += got;
  }
}

void OutputFile::CommitTo(const std::filesystem::path& other) {
  if (!temporary_ || !complete_ || descriptor_ < 0) {
    throw Error(ErrorCode::kRuntime,
                fmt::format("what was written to {} cannot be had again", path_.string()));
  }
  OutputFile file(other);
  EachChunk([&](std::string_view chunk) { file.Write(chunk); });
  file.Commit();
  Close();
}

void OutputFile::RemoveHidden() {
  if (hidden_.empty()) return;
  SignalsHeldBack held_back;
  ::unlink(hidden_.c_str());
  ForgetHidden(hidden_);
  hidden_.clear();
}

void CheckOutputFile(const std::filesystem::path& path, uint64_t bytes) {
  const OutputFile file(path, OutputFile::Accept::kFilesOnly);
  file.RequireRoom(bytes);
}

void RemoveHiddenOutputFiles() {
  for (const HiddenName& name : hidden_names) {
    if (name.used) ::unlink(name.path.data());
  }
}

}  // namespace thimble
