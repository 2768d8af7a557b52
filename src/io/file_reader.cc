#include "io/file_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "io/file.h"
#include "io/queue_shape.h"
#include "io/thread_reader.h"
#include "io/uring_reader.h"

namespace thimble {
namespace {

// A model below this is in the page cache most of the time, and loaded before a measurement of the
// drive would pay.
constexpr uint64_t kSmallModelBytes = 256 * kMB;
// Direct reads are measured on the largest file, where it has room for samples that do not overlap.
constexpr uint64_t kMeasurableBytes = 64 * kMiB;
constexpr QueueShape kThreadShape = {FileReader::kMaxThreads, 4 * kMiB};

std::vector<File> OpenAll(const std::vector<std::filesystem::path>& paths) {
  std::vector<File> files;
  files.reserve(paths.size());
  for (const auto& path : paths) files.push_back(File::Open(path));
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

QueueShape ShapeFor(const std::vector<File>& files, std::span<std::byte> scratch) {
  if (scratch.empty() || TotalBytes(files) < kSmallModelBytes) return {};
  const auto largest = std::ranges::max_element(files, {}, &File::size);
  return largest->size() < kMeasurableBytes ? QueueShape() : MeasureShape(largest->path(), scratch);
}

}  // namespace

std::unique_ptr<FileReader> OpenReader(const std::vector<std::filesystem::path>& paths,
                                       ReadMode mode, std::span<std::byte> scratch) {
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
  if (auto reader = TryNewUringReader(&*direct, ShapeFor(*direct, scratch))) return reader;
  return NewPreadReader(std::move(*direct), kThreadShape, "pread, direct");
}

}  // namespace thimble
