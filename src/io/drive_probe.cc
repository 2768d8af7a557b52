#include "io/drive_probe.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/start_thread.h"
#include "io/device_reads.h"
#include "io/file.h"

namespace thimble {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kMostTime = std::chrono::seconds(1);
constexpr uint64_t kPage = 4096;

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

// A part of a file that one read covers.
struct Extent {
  const File* file;
  int direct;  // the same file, opened with O_DIRECT
  uint64_t offset;
};

// Pages of an extent that the page cache holds.
uint64_t CachedPages(const Extent& extent) {
  void* map = ::mmap(nullptr, kProbeReadBytes, PROT_READ, MAP_SHARED, extent.file->descriptor(),
                     static_cast<off_t>(extent.offset));
  if (map == MAP_FAILED) return 0;
  std::vector<unsigned char> resident(kProbeReadBytes / kPage);
  uint64_t count = 0;
  if (::mincore(map, kProbeReadBytes, resident.data()) == 0) {
    count = static_cast<uint64_t>(std::count_if(resident.begin(), resident.end(),
                                                [](unsigned char page) { return page & 1U; }));
  }
  ::munmap(map, kProbeReadBytes);
  return count;
}

bool LivesInMemory(int descriptor) {
  struct statfs status = {};
  if (::fstatfs(descriptor, &status) != 0) return false;
  return status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC;
}

// Reads every extent once, as far as time allows, from several threads.
class Reading {
 public:
  Reading(std::span<const Extent> extents, std::span<std::byte> scratch)
      : extents_(extents), scratch_(scratch) {}

  void Run() {
    start_ = Clock::now();
    std::vector<std::thread> threads;
    try {
      for (size_t i = 0; i < kProbeReads; ++i) {
        threads.push_back(StartThread("a thread that measures the drive", [this, i] {
          Work(scratch_.subspan(i * kProbeReadBytes).data());
        }));
      }
    } catch (...) {
      for (std::thread& thread : threads) thread.join();
      throw;
    }
    for (std::thread& thread : threads) thread.join();
    seconds_ = std::chrono::duration<double>(Clock::now() - start_).count();
    num_read_ = std::min<size_t>(next_, extents_.size());
  }

  size_t num_read() const { return num_read_; }
  double seconds() const { return seconds_; }
  // Of the first read that failed; 0 where none did.
  int error() const { return error_; }

 private:
  void Work(std::byte* out) {
    while (error_ == 0 && Clock::now() - start_ < kMostTime) {
      const size_t i = next_++;
      if (i >= extents_.size()) return;
      const Extent& extent = extents_[i];
      ssize_t got = 0;
      do {
        got = ::pread(extent.direct, out, kProbeReadBytes, static_cast<off_t>(extent.offset));
      } while (got < 0 && errno == EINTR);
      if (got < 0) error_ = errno;
    }
  }

  std::span<const Extent> extents_;
  std::span<std::byte> scratch_;
  Clock::time_point start_;
  std::atomic<size_t> next_ = 0;
  std::atomic<int> error_ = 0;
  size_t num_read_ = 0;
  double seconds_ = 0;
};

DriveProbe Refuse(std::string obstacle) {
  DriveProbe probe;
  probe.obstacle = std::move(obstacle);
  return probe;
}

// In an order that jumps between and within files, so that no read-ahead helps.
std::vector<Extent> Spread(const std::vector<File>& files, const std::vector<Descriptor>& direct) {
  std::vector<Extent> extents;
  for (size_t i = 0; i < files.size(); ++i) {
    for (uint64_t at = 0; at + kProbeReadBytes <= files[i].size(); at += kProbeReadBytes) {
      extents.push_back({&files[i], direct[i].number(), at});
    }
  }
  uint64_t random = 1;
  for (size_t i = extents.size(); i > 1; --i) {
    random = random * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX generator
    std::swap(extents[i - 1], extents[(random >> 33) % i]);
  }
  return extents;
}

DriveProbe Probe(const std::vector<File>& files, const std::vector<Descriptor>& direct,
                 std::span<std::byte> scratch) {
  const std::vector<Extent> extents = Spread(files, direct);
  if (extents.size() * kProbeReadBytes < kLeastProbeBytes) {
    DriveProbe probe = Refuse("the files are too small to measure by, expected " +
                              FormatBytes(kLeastProbeBytes) + " at least");
    probe.too_small = true;
    return probe;
  }
  // Direct reads leave the page cache as it is. More than a second's worth need not be watched.
  const size_t watched = std::min<size_t>(extents.size(), 64);
  const auto cached = [&] {
    uint64_t pages = 0;
    for (size_t i = 0; i < watched; ++i) pages += CachedPages(extents[i]);
    return pages;
  };
  const uint64_t before = cached();
  const DeviceWatch watch;
  Reading reading(extents, scratch);
  reading.Run();
  if (reading.error() == EINVAL)
    return Refuse("the file system does not support direct reads (O_DIRECT)");
  if (reading.error() != 0) {
    throw Error(ErrorCode::kRuntime, std::string("a direct read failed: ") +
                                         std::strerror(reading.error()) +
                                         "; check the drive and its cable, then run again");
  }
  const uint64_t pages_read = std::min(reading.num_read(), watched) * (kProbeReadBytes / kPage);
  if (cached() > before + pages_read / 10) {
    return Refuse("the file system passes direct reads through the page cache");
  }
  DriveProbe probe;
  probe.read_bytes = reading.num_read() * kProbeReadBytes;
  const std::string obstacle = watch.Obstacle(probe.read_bytes);
  if (!obstacle.empty()) return Refuse(obstacle);
  probe.seconds = reading.seconds();
  probe.bytes_per_s = static_cast<double>(probe.read_bytes) / probe.seconds;
  return probe;
}

DriveProbe ProbeFiles(const std::vector<File>& files, std::span<std::byte> scratch) {
  THIMBLE_CHECK(scratch.size() >= kProbeScratchBytes);
  std::vector<Descriptor> direct;
  for (const File& file : files) {
    if (LivesInMemory(file.descriptor())) {
      return Refuse("the file system keeps its files in memory, not on a drive");
    }
    // By way of the open file, which may have no name.
    const std::string path = "/proc/self/fd/" + std::to_string(file.descriptor());
    direct.emplace_back(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
    if (direct.back().number() >= 0) continue;
    return Refuse(errno == ENOENT ? "/proc is not mounted, and files are reopened through it"
                                  : "the file system does not support direct reads (O_DIRECT)");
  }
  return Probe(files, direct, scratch);
}

[[noreturn]] void FailWrite(const std::filesystem::path& folder) {
  throw Error(ErrorCode::kRuntime, "cannot write a probe file in " + folder.string() + ": " +
                                       std::strerror(errno) +
                                       "; run this in a folder on the drive you want to measure");
}

// Incompressible, or a compressing file system would write next to nothing.
void FillRandomly(std::span<std::byte> out, uint64_t seed) {
  for (size_t i = 0; i + sizeof(seed) <= out.size(); i += sizeof(seed)) {
    seed ^= seed << 13;  // xorshift64 of Marsaglia
    seed ^= seed >> 7;
    seed ^= seed << 17;
    std::memcpy(out.data() + i, &seed, sizeof(seed));
  }
}

void WriteAll(int descriptor, std::span<const std::byte> data,
              const std::filesystem::path& folder) {
  while (!data.empty()) {
    const ssize_t put = ::write(descriptor, data.data(), data.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) FailWrite(folder);
    data = data.subspan(static_cast<size_t>(put));
  }
}

// A file without a name; where the file system has no such thing, one whose name goes at once.
int NamelessFile(const std::filesystem::path& folder) {
  const int nameless = ::open(folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  if (nameless >= 0) return nameless;
  std::string name = (folder / "thimble-probe-XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named < 0) FailWrite(folder);
  ::unlink(name.c_str());
  return named;
}

}  // namespace

DriveProbe ProbeDrive(const std::vector<std::filesystem::path>& files,
                      std::span<std::byte> scratch) {
  std::vector<File> open;
  open.reserve(files.size());
  for (const auto& path : files) open.push_back(File::Open(path));
  return ProbeFiles(open, scratch);
}

ProbeFile::ProbeFile(std::filesystem::path folder)
    : folder_(std::move(folder)), descriptor_(NamelessFile(folder_)) {}

ProbeFile::~ProbeFile() { ::close(descriptor_); }

bool ProbeFile::LivesInMemory() const { return thimble::LivesInMemory(descriptor_); }

void ProbeFile::Fill(uint64_t bytes, std::span<std::byte> scratch,
                     const std::function<bool()>& go_on) {
  THIMBLE_CHECK(scratch.size() >= kProbeReadBytes);
  const auto part = scratch.first(kProbeReadBytes);
  for (uint64_t at = 0; at < bytes; at += part.size()) {
    if (go_on && !go_on()) {
      throw Error(ErrorCode::kInterrupted, "stopped while a probe file was written");
    }
    FillRandomly(part, at + 1);
    WriteAll(descriptor_, part, folder_);
  }
  if (::fsync(descriptor_) != 0) FailWrite(folder_);
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
}

std::filesystem::path ProbeFile::path() const {
  return "/proc/self/fd/" + std::to_string(descriptor_);
}

DriveProbe ProbeDriveOf(const std::filesystem::path& folder, uint64_t bytes,
                        std::span<std::byte> scratch) {
  ProbeFile file(folder);
  if (file.LivesInMemory()) {
    return Refuse("the file system keeps its files in memory, not on a drive");
  }
  std::error_code ignored;
  if (!std::filesystem::exists(file.path(), ignored)) {
    return Refuse("/proc is not mounted, and the probe file is read through it");
  }
  file.Fill(bytes, scratch);
  return ProbeDrive({file.path()}, scratch);
}

}  // namespace thimble
