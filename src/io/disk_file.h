#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace thimble {

/// A file that is being written: owns the descriptor. Failures are Error(kRuntime) naming the file
/// and the system's reason; a full disk says so, and that the command may be run again.
class DiskFile {
 public:
  enum class Cache : uint8_t {
    kKernel,
    kBypass,  // O_DIRECT where the file system has it: memory, offsets and sizes are then multiples
              // of kAlignment, reads meet the drive, and copying costs no time
  };
  static constexpr size_t kAlignment = 4096;

  /// Opens `path` for reading and writing; made where it does not exist, kept where it does.
  explicit DiskFile(const std::filesystem::path& path, Cache cache = Cache::kKernel);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t Size() const;
  void WriteAt(uint64_t offset, std::string_view bytes);
  void ReadAt(uint64_t offset, size_t bytes, void* out) const;
  void Truncate(uint64_t size);
  /// Returns once everything written is on the drive.
  void Sync();
  /// Asks the kernel to forget what it holds of the file, so that the next read meets the drive
  /// even where the cache could not be bypassed.
  void DropCache() const;
  /// False where another process holds the file locked. Held until closed.
  bool TryLock() const;

 private:
  [[noreturn]] void Fail(const char* doing) const;

  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Where a file is written until it is whole.
std::filesystem::path PartialPath(const std::filesystem::path& path);

/// Moves a finished file from its partial path to its own, on the drive when this returns.
void Publish(const std::filesystem::path& path);

/// Makes `bytes` the whole of a file: afterwards it is there entirely, or as it was before.
void WriteWhole(const std::filesystem::path& path, std::string_view bytes);

/// Bytes that a process without privileges may still write to the file system of `dir`.
uint64_t FreeDiskBytes(const std::filesystem::path& dir);

}  // namespace thimble
