#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/file.h"

namespace thimble {

struct WatchedFile;

/// Files of which pages are mapped, watched for pages that are gone. Touching a page of a mapped
/// file that has been shortened, or that the drive no longer gives, raises SIGBUS, which ends a
/// process. The first object of this class installs a handler, for good: where the page belongs to
/// a watched file it puts zeros in place of that whole mapping and takes note; every other SIGBUS
/// goes to the handler that was there before. Whoever computes asks Lost() before a result counts.
class MappedFiles {
 public:
  /// Borrows `files`.
  explicit MappedFiles(const std::vector<File>& files);

  /// What to tell the user where pages of one of the files were lost since, or where it is shorter
  /// than when it was opened; empty where neither is so. Asks the system for each file's size. Any
  /// thread.
  std::string Lost() const;

  /// Whether the file system lets `file` be mapped; true of an empty file.
  static bool CanMap(const File& file);

 private:
  struct Watch {
    const File* file;
    const WatchedFile* watched;
    uint64_t losses_before;
  };
  std::vector<Watch> watches_;
};

}  // namespace thimble
