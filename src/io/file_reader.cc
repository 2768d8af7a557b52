#include "io/file_reader.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/error.h"
#include "io/file.h"
#include "io/queue_shape.h"
#include "io/thread_reader.h"
#include "io/uring_reader.h"

namespace thimble {
namespace {

// A model below this is in the page cache most of the time.
constexpr uint64_t kSmallModelBytes = 256 * kMB;
constexpr QueueShape kThreadShape = {FileReader::kMaxThreads, 4 * kMiB};
// 32 MiB: beyond that no drive was seen to gain, and demanded reads wait.
constexpr QueueShape kUringShape = {8, 4 * kMiB};

std::vector<File> OpenAll(const std::vector<std::filesystem::path>& paths) {
  std::vector<File> files;
  files.reserve(paths.size());
  try {
    for (const auto& path : paths) files.push_back(File::Open(path));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kRuntime) throw;
    throw Error(error.code(),
                fmt::format("{}; the {} files of this model stay open, each twice for "
                            "a moment",
                            error.what(), paths.size()));
  }
  return files;
}

// Nothing where one of them cannot be read direct.
std::optional<std::vector<File>> OpenAllDirect(const std::vector<std::filesystem::path>& paths) {
  std::vector<File> files;
  for (const auto& path : paths) {
    auto file = File::OpenDirect(path);
    if (!file) return std::nullopt;
    files.push_back(std::move(*file));
  }
  return files;
}

uint64_t TotalBytes(const std::vector<File>& files) {
  uint64_t total = 0;
  for (const File& file : files) total += file.size();
  return total;
}

}  // namespace

std::unique_ptr<FileReader> OpenReader(const std::vector<std::filesystem::path>& paths,
                                       ReadMode mode) {
  std::vector<File> buffered = OpenAll(paths);
  if (mode == ReadMode::kMapped) {
    if (auto reader = TryNewMapReader(&buffered, kThreadShape)) return reader;
    return NewPreadReader(std::move(buffered), kThreadShape, "pread, buffered for lack of mmap");
  }
  const bool small = TotalBytes(buffered) < kSmallModelBytes;
  if (mode == ReadMode::kBuffered || (mode == ReadMode::kAuto && small)) {
    return NewPreadReader(std::move(buffered), kThreadShape, "pread, buffered");
  }
  auto direct = OpenAllDirect(paths);
  if (!direct) {
    return NewPreadReader(std::move(buffered), kThreadShape,
                          "pread, buffered for lack of O_DIRECT");
  }
  if (auto reader = TryNewUringReader(&*direct, kUringShape)) return reader;
  return NewPreadReader(std::move(*direct), kThreadShape, "pread, direct");
}

}  // namespace thimble
