#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace thimble {

/// Where the program puts a result under a name that the user gave. The one way to write such a
/// file; what already has the name is never destroyed by a failure.
///
/// - A regular file, or a name that is free: the bytes go to a file without a name in the same
///   folder, which Commit brings to the drive and moves to the name in one step. Until then, and
///   after any failure, the name is as it was. Where the file system has no nameless files, a
///   hidden one beside the target takes their place; it is removed by the destructor, or by
///   RemoveHiddenOutputFiles when a signal ends the process.
/// - An existing file keeps its permissions and its owner. Where it has several names (hard links),
///   an owner that this process may not give, is a mount point or lies in a folder that takes no
///   new files, its contents are replaced in place: then Commit can fail half-way.
/// - Symbolic links are followed; the link stays.
/// - Pipes and character devices are opened and written straight. Opening a named pipe waits for
///   its reader.
/// - A name in /proc/self/fd, as /dev/stdout and /dev/fd/N lead to, and a file that is standard
///   output or error of this process, go to that descriptor.
/// - A directory, a socket and a drive (block device) are refused.
///
/// Errors name the file and the reason: kUsage where such a thing is refused, kRuntime where the
/// system fails. One thread.
class OutputFile {
 public:
  enum class Accept : uint8_t {
    kAnything,
    kFilesOnly,  // refuses all but regular files and free names: the result is to be read again
  };

  /// Opens the target, so that a name which cannot be written is known before the work begins.
  explicit OutputFile(const std::filesystem::path& path, Accept accept = Accept::kAnything);
  /// Without Commit, the target stays as it was.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void Write(std::string_view bytes);
  void Write(const void* data, size_t bytes) {
    Write(std::string_view(static_cast<const char*>(data), bytes));
  }
  /// Error where the drive has less room than `bytes`: better now than at the end of the work.
  void RequireRoom(uint64_t bytes) const;
  void Commit();
  /// After a Commit that failed: writes all of it to `other` instead. Error where the bytes are not
  /// there, since a Write failed or they went straight to a device.
  void CommitTo(const std::filesystem::path& other);

 private:
  void OpenTarget();
  void OpenDescriptor(int number, std::string_view what);
  void OpenExisting(const struct stat& status);
  void OpenTemporary();
  void OpenHidden();
  void Link();
  void Overwrite();
  void EachChunk(const std::function<void(std::string_view)>& take);
  void Put(int descriptor, std::string_view bytes);
  void RemoveHidden();
  void Close();
  [[noreturn]] void Fail(int error) const;
  [[noreturn]] void Refuse(std::string_view what) const;

  const std::filesystem::path path_;  // as named
  const Accept accept_;
  std::filesystem::path target_;  // behind all links
  std::filesystem::path hidden_;  // the temporary file, where it has a name
  int descriptor_ = -1;
  bool temporary_ = false;  // what is written is not the target yet
  bool in_place_ = false;   // the target's contents are replaced, not the target
  bool truncates_ = false;  // the target loses its contents at the first byte
  bool complete_ = true;    // no Write has failed
};

/// Error where OutputFile could not write `bytes` to `path`, a regular file or a free name; changes
/// nothing.
void CheckOutputFile(const std::filesystem::path& path, uint64_t bytes = 0);

/// Removes the hidden files of all unfinished OutputFiles. Async-signal-safe: for a handler that
/// then ends the process.
void RemoveHiddenOutputFiles();

}  // namespace thimble
