#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace thimble {

/// A page of the kernel.
inline constexpr size_t kPageBytes = 4096;

/// A file open for reading: owns the descriptor. Movable; reads are safe from any thread.
class File {
 public:
  /// Opens `path`. Error(kBadModel) naming it and the system's reason where that fails or it is not
  /// a regular file; Error(kRuntime) where the system has no descriptors or memory left, or the
  /// drive fails.
  static File Open(const std::filesystem::path& path);
  /// The same, past the page cache (O_DIRECT); nothing where the file system cannot do that.
  static std::optional<File> OpenDirect(const std::filesystem::path& path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  /// Size in bytes when opened.
  uint64_t size() const { return size_; }
  int descriptor() const { return descriptor_; }

  /// Reads exactly [offset, offset + bytes) into `out`, through short reads and EINTR. Error
  /// (kRuntime) naming file and offset where the file ends early or the device fails.
  void ReadAt(uint64_t offset, size_t bytes, void* out) const;

  /// What to tell the user where a read at byte `offset` failed with `error`, an errno.
  std::string DescribeFailure(uint64_t offset, int error) const;
  /// The same where a read that needed the bytes up to `end` brought none at `offset`.
  std::string DescribeShortage(uint64_t offset, uint64_t end) const;

 private:
  File(std::filesystem::path path, int descriptor, uint64_t size)
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}

  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

/// The whole of a text file of at most `max_bytes`. Error(kBadModel) where it is longer or cannot
/// be opened.
std::string ReadTextFile(const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace thimble
