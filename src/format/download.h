#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/file.h"

namespace thimble {

/// What became of one file that a download should have brought.
struct DownloadedFile {
  enum class State : uint8_t {
    kWhole,
    kCut,        // shorter than its header says, or without a whole header
    kUnwritten,  // its size is right, but its program has not finished it, or it ends in zeros
    kMissing,
    kForeign,  // something else in its place: a Git LFS pointer, a web page
    kDamaged,  // anything else that its header shows
  };
  std::string name;
  State state = State::kMissing;
  uint64_t bytes = 0;                      // there
  std::optional<uint64_t> expected_bytes;  // where its header says
  std::string problem;                     // kForeign, kDamaged: what is wrong
};

/// A file in which a program keeps what it has downloaded so far, or notes about it.
struct UnfinishedFile {
  std::filesystem::path path;
  uint64_t bytes = 0;
  uint64_t idle_seconds = 0;  // since it was last written
};

/// How much of a model is here.
struct DownloadState {
  std::vector<DownloadedFile> shards;  // by name
  std::vector<UnfinishedFile> unfinished;
  std::string next;  // the command or step that completes the download

  size_t Count(DownloadedFile::State state) const;
  /// False where a shard is missing, cut, unwritten or foreign. Damage is not for a download to
  /// mend, and leaves it complete.
  bool is_complete() const;
  /// Another program wrote to an unfinished file within the last minute.
  bool is_running() const;
};

/// Looks at the shards `names` of `dir`: reads headers and the last bytes, no weights.
DownloadState ExamineDownload(const std::filesystem::path& dir,
                              const std::vector<std::string>& names);

/// "12 of 96 shards are whole; cut: ...; missing: ...; ...", for people.
std::string DescribeDownload(const DownloadState& state);

/// Error(kBadModel) that describes the state, unless it is complete.
void RequireComplete(const std::filesystem::path& dir, const DownloadState& state);

/// Names in order as text, runs of neighbours as "first to last (number)". `all` holds `names` and
/// tells what neighbours are.
std::string CompressNames(const std::vector<std::string>& names,
                          const std::vector<std::string>& all);

/// True where the space of a shard was reserved and not filled: its last 64 KiB are zeros, which no
/// published shard ends in, or aria2 keeps its notes beside it.
bool IsUnwritten(const File& file);

}  // namespace thimble
