#include "format/shard_headers.h"

#include <exception>
#include <string>
#include <utility>

#include "base/error.h"
#include "format/download.h"
#include "format/model_files.h"
#include "format/tensor_store.h"
#include "io/file.h"

namespace thimble {
namespace {

ShardHeader ReadHeader(const std::filesystem::path& path) {
  if (!FileExists(path)) {
    throw Error(ErrorCode::kBadModel,
                "the shard " + path.string() +
                    " is missing; download it again, or check that the download finished");
  }
  const File file = File::Open(path);
  if (file.size() >= kMaxFileBytes) {
    throw Error(ErrorCode::kBadModel, path.string() + ": expected less than 2^48 bytes, found " +
                                          std::to_string(file.size()));
  }
  std::vector<SafetensorsEntry> entries = ReadSafetensors(file);
  if (IsUnwritten(file)) {
    throw Error(ErrorCode::kBadModel,
                path.string() + " is not written to its end; let its download finish");
  }
  return {path, file.size(), std::move(entries)};
}

}  // namespace

std::vector<ShardHeader> ReadShardHeaders(std::span<const std::filesystem::path> paths,
                                          ThreadPool& pool) {
  std::vector<ShardHeader> headers(paths.size());
  std::vector<std::exception_ptr> failures(paths.size());
  pool.ParallelFor(paths.size(), 1, [&](const Range& range) {
    for (size_t i = range.first; i < range.last; ++i) {
      try {
        headers[i] = ReadHeader(paths[i]);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return headers;
}

}  // namespace thimble
