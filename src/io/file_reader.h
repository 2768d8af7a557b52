#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/block_reader.h"

namespace thimble {

/// How the files of a model are read.
enum class ReadMode : uint8_t {
  kAuto,      // small models buffered, others direct
  kDirect,    // past the page cache: the drive's own speed, and no memory beside the budget
  kBuffered,  // through the page cache: fast where the machine has room for the whole model
  kMapped,    // the pages of the page cache themselves, never copied
};

/// A BlockReader of files: owns their descriptors and the threads that wait for the drive.
class FileReader : public BlockReader {
 public:
  /// Threads of any reader, each asleep in the kernel nearly all of the time.
  static constexpr size_t kMaxThreads = 4;

  /// How it reads, in words: "io_uring, direct, depth 8 x 4 MiB".
  virtual std::string Describe() const = 0;
  /// Bytes that came so far, with what alignment adds. Any thread.
  virtual uint64_t read_bytes() const = 0;
  /// Why what was read before is no longer what it was; empty where it is, as it always is where
  /// bytes are copied. Asked when a result has been computed, before it counts. Any thread.
  virtual std::string Lost() const { return {}; }
};

/// Opens all files, in the best way that the kernel and their file system allow: io_uring with
/// O_DIRECT; without io_uring, threads that call pread(2) with O_DIRECT; without O_DIRECT, the same
/// through the page cache. Describe() says which it became. Error(kBadModel) where a file cannot be
/// opened.
std::unique_ptr<FileReader> OpenReader(const std::vector<std::filesystem::path>& paths,
                                       ReadMode mode);

}  // namespace thimble
