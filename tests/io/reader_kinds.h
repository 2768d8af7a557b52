#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/thread_reader.h"
#include "io/uring_reader.h"

namespace thimble {

/// A kind of reader, in the sizes that a test wants.
struct ReaderKind {
  const char* name;
  bool uring = false;
  bool direct = false;
  QueueShape shape = {};
  bool mapped = false;
};

/// Opens such a reader. Null where this machine cannot; `*reason` then says what it lacks.
inline std::unique_ptr<FileReader> OpenKind(const ReaderKind& kind,
                                            const std::vector<std::filesystem::path>& paths,
                                            std::string* reason) {
  std::vector<File> files;
  for (const auto& path : paths) {
    auto file = kind.direct ? File::OpenDirect(path) : File::Open(path);
    if (!file) {
      *reason = "the file system of " + path.string() + " has no O_DIRECT";
      return nullptr;
    }
    files.push_back(std::move(*file));
  }
  if (kind.mapped) {
    auto reader = TryNewMapReader(&files, kind.shape);
    if (reader == nullptr) *reason = "the file system of " + paths[0].string() + " has no mmap";
    return reader;
  }
  if (!kind.uring) return NewPreadReader(std::move(files), kind.shape, kind.name);
  auto reader = TryNewUringReader(&files, kind.shape);
  if (reader == nullptr) *reason = "this kernel has no io_uring, or does not let the tests use it";
  return reader;
}

}  // namespace thimble
