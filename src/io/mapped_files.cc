#include "io/mapped_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>

#include "base/error.h"

namespace thimble {

/// A file as /proc/self/maps identifies it, which on some file systems is not what stat says. Lives
/// as long as the process, since the handler may look at it at any time.
struct WatchedFile {
  uint64_t device;
  uint64_t inode;
  WatchedFile* next;
  std::atomic<uint64_t> losses = 0;
};

namespace {

std::atomic<WatchedFile*> first_watched = nullptr;
std::mutex watched_mutex;  // of those who add
struct sigaction previous_action = {};

struct Mapping {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  uint64_t device = 0;
  uint64_t inode = 0;  // 0: no file
};

// /proc/self/maps, read with what a signal handler may call: open, read, close.
class MapsFile {
 public:
  MapsFile() : descriptor_(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}
  ~MapsFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  MapsFile(const MapsFile&) = delete;
  MapsFile& operator=(const MapsFile&) = delete;

  // Lines are "begin-end permissions offset major:minor inode  path".
  bool Next(Mapping* mapping) {
    mapping->begin = Number(16);
    mapping->end = Number(16);
    while (Take() == ' ') {
    }
    while (last_ != ' ' && last_ != -1) Take();  // permissions
    Number(16);
    const uint64_t major = Number(16);
    mapping->device = major << 32 | Number(16);
    mapping->inode = Number(10);
    while (last_ != '\n' && last_ != -1) Take();
    return last_ != -1;
  }

 private:
  // The digits from here on, and the character behind them.
  uint64_t Number(uint64_t base) {
    uint64_t value = 0;
    while (true) {
      const int c = Take();
      if (c >= '0' && c <= '9') {
        value = value * base + static_cast<uint64_t>(c - '0');
      } else if (base == 16 && c >= 'a' && c <= 'f') {
        value = value * base + static_cast<uint64_t>(c - 'a' + 10);
      } else {
        return value;
      }
    }
  }

  // The next character, or -1.
  int Take() {
    if (position_ == filled_) {
      const ssize_t got = descriptor_ < 0 ? 0 : ::read(descriptor_, buffer_.data(), buffer_.size());
      position_ = 0;
      filled_ = got > 0 ? static_cast<size_t>(got) : 0;
      if (filled_ == 0) return last_ = -1;
    }
    return last_ = static_cast<unsigned char>(buffer_[position_++]);
  }

  int descriptor_;
  int last_ = 0;
  size_t position_ = 0;
  size_t filled_ = 0;
  std::array<char, 4096> buffer_;
};

bool FindMapping(uintptr_t address, Mapping* mapping) {
  MapsFile maps;
  while (maps.Next(mapping)) {
    if (mapping->begin <= address && address < mapping->end) return true;
  }
  return false;
}

WatchedFile* FindWatched(const Mapping& mapping) {
  WatchedFile* file = first_watched.load(std::memory_order_acquire);
  while (file != nullptr && (file->device != mapping.device || file->inode != mapping.inode)) {
    file = file->next;
  }
  return file;
}

// In place of the mapping that `address` is in.
bool PutZeros(const Mapping& mapping, void* address) {
  void* const begin =
      static_cast<std::byte*>(address) - (reinterpret_cast<uintptr_t>(address) - mapping.begin);
  // The bare system call: what wraps mmap (ThreadSanitizer does) is not made for a handler, and
  // takes for a race that other threads read what is replaced, which is the point.
  return ::syscall(SYS_mmap, begin, mapping.end - mapping.begin, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != -1;
}

// True where the access can be tried again.
bool Mend(void* address) {
  Mapping mapping;
  if (!FindMapping(reinterpret_cast<uintptr_t>(address), &mapping)) return false;
  if (mapping.inode == 0) return true;  // another thread has just mended it
  WatchedFile* const file = FindWatched(mapping);
  if (file == nullptr) return false;
  file->losses.fetch_add(1, std::memory_order_relaxed);
  return PutZeros(mapping, address);
}

void OnBusError(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const bool mended = info->si_code == BUS_ADRERR && Mend(info->si_addr);
  errno = saved_errno;
  if (mended) return;
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler == SIG_DFL || previous_action.sa_handler == SIG_IGN) {
    ::sigaction(SIGBUS, &previous_action, nullptr);  // and the access, tried again, takes it
  } else {
    previous_action.sa_handler(signal);
  }
}

void InstallHandler() {
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  THIMBLE_CHECK(::sigaction(SIGBUS, &action, &previous_action) == 0);
}

// The file's first page, mapped for as long as it is looked at.
class FirstPage {
 public:
  explicit FirstPage(const File& file)
      : page_(::mmap(nullptr, kPageBytes, PROT_READ, MAP_PRIVATE, file.descriptor(), 0)) {}
  ~FirstPage() {
    if (mapped()) ::munmap(page_, kPageBytes);
  }
  FirstPage(const FirstPage&) = delete;
  FirstPage& operator=(const FirstPage&) = delete;

  bool mapped() const { return page_ != MAP_FAILED; }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(page_); }

 private:
  void* page_;
};

const WatchedFile* WatchFile(const File& file) {
  const FirstPage page(file);
  Mapping mapping;
  if (!page.mapped() || !FindMapping(page.address(), &mapping)) {
    throw Error(ErrorCode::kRuntime, file.path().string() +
                                         " cannot be mapped and watched, which needs /proc; "
                                         "run again with --io buffered");
  }
  if (const WatchedFile* known = FindWatched(mapping)) return known;
  auto* const added = new WatchedFile{mapping.device, mapping.inode, first_watched.load()};
  first_watched.store(added, std::memory_order_release);
  return added;
}

}  // namespace

MappedFiles::MappedFiles(const std::vector<File>& files) {
  const std::lock_guard lock(watched_mutex);
  static const bool installed = (InstallHandler(), true);
  (void)installed;
  for (const File& file : files) {
    if (file.size() == 0) continue;
    const WatchedFile* watched = WatchFile(file);
    watches_.push_back({&file, watched, watched->losses.load()});
  }
}

std::string MappedFiles::Lost() const {
  for (const Watch& watch : watches_) {
    struct stat status = {};
    // Without a fault the rest of the last page reads as zeros, too.
    const bool is_whole = ::fstat(watch.file->descriptor(), &status) == 0 &&
                          static_cast<uint64_t>(status.st_size) >= watch.file->size();
    const uint64_t losses = watch.watched->losses.load(std::memory_order_relaxed);
    if (is_whole && losses == watch.losses_before) continue;
    return "weights that were mapped from " + watch.file->path().string() +
           " are gone: the file was shortened while in use, or its drive failed; restore it, then "
           "run again";
  }
  return {};
}

bool MappedFiles::CanMap(const File& file) { return file.size() == 0 || FirstPage(file).mapped(); }

}  // namespace thimble
