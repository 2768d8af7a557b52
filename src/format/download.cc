#include "format/download.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <system_error>

#include "base/byte_size.h"
#include "base/error.h"
#include "format/model_files.h"
#include "format/safetensors.h"
#include "io/foreign_file.h"

namespace thimble {
namespace {

using State = DownloadedFile::State;

constexpr uint64_t kTailBytes = uint64_t{64} << 10;
constexpr uint64_t kRunningSeconds = 60;
constexpr size_t kMaxUnfinishedShown = 4;

// How programs name what they have not finished.
constexpr std::array kUnfinishedExtensions = {".incomplete", ".aria2",    ".part",
                                              ".crdownload", ".download", ".tmp"};

DownloadedFile ExamineShard(const std::filesystem::path& path) {
  DownloadedFile shard;
  shard.name = path.filename().string();
  if (!FileExists(path)) return shard;
  try {
    const File file = File::Open(path);
    shard.bytes = file.size();
    shard.state = State::kCut;
    if (shard.bytes == 0) return shard;
    shard.state = State::kForeign;
    RefuseForeign(file);
    shard.state = State::kDamaged;
    shard.expected_bytes = StatedSize(file);
    const bool is_cut = !shard.expected_bytes || *shard.expected_bytes > shard.bytes;
    shard.state = is_cut ? State::kCut : IsUnwritten(file) ? State::kUnwritten : State::kWhole;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel) throw;
    shard.problem = error.what();
    if (shard.state == State::kMissing) shard.state = State::kDamaged;  // cannot be opened
  }
  return shard;
}

uint64_t SecondsSinceWritten(const std::filesystem::path& path) {
  std::error_code error;
  const auto written = std::filesystem::last_write_time(path, error);
  if (error) return 0;
  const auto idle = std::filesystem::file_time_type::clock::now() - written;
  return std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::seconds>(idle).count());
}

void AddUnfinished(const std::filesystem::path& dir, std::vector<UnfinishedFile>* found) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    const std::string extension = entry.path().extension().string();
    if (std::ranges::find(kUnfinishedExtensions, extension) == kUnfinishedExtensions.end()) {
      continue;
    }
    std::error_code unknown;
    const uint64_t bytes = entry.file_size(unknown);
    found->push_back({entry.path(), unknown ? 0 : bytes, SecondsSinceWritten(entry.path())});
  }
}

// "org/name", where `dir` is a snapshot in a cache of the hub's tools.
std::string CachedRepository(const std::filesystem::path& dir) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::canonical(dir, error);
  if (error || whole.parent_path().filename() != "snapshots") return {};
  std::string name = whole.parent_path().parent_path().filename().string();
  constexpr std::string_view kPrefix = "models--";
  if (!name.starts_with(kPrefix)) return {};
  name.erase(0, kPrefix.size());
  const size_t divider = name.find("--");
  if (divider != std::string::npos) name.replace(divider, 2, "/");
  return name;
}

// How the download goes on, told by what its program left in the directory.
std::string NextStep(const std::filesystem::path& dir, const DownloadState& state) {
  if (state.is_running()) return "wait until the program that is downloading it is done";
  const bool pointers = std::ranges::any_of(state.shards, [](const DownloadedFile& shard) {
    return shard.problem.find("Git LFS") != std::string::npos;
  });
  if (pointers) return fmt::format("run `git -C {} lfs pull`", dir.string());
  const std::string repository = CachedRepository(dir);
  if (!repository.empty()) return fmt::format("run `hf download {}` again", repository);
  std::error_code error;
  if (std::filesystem::exists(dir / ".cache" / "huggingface", error)) {
    return fmt::format("run `hf download MODEL --local-dir {}` again", dir.string());
  }
  const bool aria2 = std::ranges::any_of(state.unfinished, [](const UnfinishedFile& file) {
    return file.path.extension() == ".aria2";
  });
  if (aria2) return "run the same aria2c command again";
  return "run the download again; most programs continue where they stopped";
}

std::vector<std::string> NamesOf(const std::vector<DownloadedFile>& shards) {
  std::vector<std::string> names;
  names.reserve(shards.size());
  for (const DownloadedFile& shard : shards) names.push_back(shard.name);
  return names;
}

std::vector<std::string> NamesOf(const DownloadState& state, State wanted) {
  std::vector<std::string> names;
  for (const DownloadedFile& shard : state.shards) {
    if (shard.state == wanted) names.push_back(shard.name);
  }
  return names;
}

std::string DescribeCut(const DownloadState& state) {
  std::string text;
  for (const DownloadedFile& shard : state.shards) {
    if (shard.state != State::kCut) continue;
    text += fmt::format("{}{} ({}", text.empty() ? "" : ", ", shard.name, shard.bytes);
    if (shard.expected_bytes) text += fmt::format(" of {}", *shard.expected_bytes);
    text += " bytes)";
  }
  return text;
}

std::string DescribeForeignShards(const DownloadState& state) {
  std::string text;
  for (const DownloadedFile& shard : state.shards) {
    if (shard.state == State::kForeign) text += "; " + shard.problem;
    // One says enough: they came the same way.
    if (!text.empty()) break;
  }
  const size_t others = state.Count(State::kForeign) - (text.empty() ? 0 : 1);
  return others == 0 ? text : fmt::format("{}, and {} more like it", text, others);
}

std::string DescribeUnfinished(const DownloadState& state) {
  std::string text;
  for (size_t i = 0; i < std::min(state.unfinished.size(), kMaxUnfinishedShown); ++i) {
    const UnfinishedFile& file = state.unfinished[i];
    text += fmt::format("{}{} ({}, written {} s ago)", i == 0 ? "" : ", ",
                        file.path.filename().string(), FormatBytes(file.bytes), file.idle_seconds);
  }
  if (state.unfinished.size() > kMaxUnfinishedShown) {
    text += fmt::format(" and {} more", state.unfinished.size() - kMaxUnfinishedShown);
  }
  return text;
}

}  // namespace

size_t DownloadState::Count(State state) const {
  return static_cast<size_t>(std::ranges::count(shards, state, &DownloadedFile::state));
}

bool DownloadState::is_complete() const {
  return Count(State::kWhole) + Count(State::kDamaged) == shards.size();
}

bool DownloadState::is_running() const {
  return std::ranges::any_of(
      unfinished, [](const UnfinishedFile& file) { return file.idle_seconds < kRunningSeconds; });
}

DownloadState ExamineDownload(const std::filesystem::path& dir,
                              const std::vector<std::string>& names) {
  DownloadState state;
  for (const std::string& name : names) state.shards.push_back(ExamineShard(dir / name));
  std::ranges::sort(state.shards, {}, &DownloadedFile::name);
  AddUnfinished(dir, &state.unfinished);
  AddUnfinished(dir / ".cache" / "huggingface" / "download", &state.unfinished);
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::canonical(dir, error);
  if (!error && whole.parent_path().filename() == "snapshots") {
    AddUnfinished(whole.parent_path().parent_path() / "blobs", &state.unfinished);
  }
  std::ranges::sort(state.unfinished, {}, &UnfinishedFile::path);
  state.next = NextStep(dir, state);
  return state;
}

std::string DescribeDownload(const DownloadState& state) {
  const std::vector<std::string> all = NamesOf(state.shards);
  std::string text =
      fmt::format("{} of {} shards are whole", state.Count(State::kWhole), all.size());
  if (state.Count(State::kCut) > 0) text += "; cut: " + DescribeCut(state);
  for (const auto& [what, kind] : {std::pair("not written to the end", State::kUnwritten),
                                   std::pair("missing", State::kMissing)}) {
    const std::vector<std::string> names = NamesOf(state, kind);
    if (!names.empty()) text += fmt::format("; {}: {}", what, CompressNames(names, all));
  }
  text += DescribeForeignShards(state);
  if (!state.unfinished.empty()) {
    text += fmt::format("; {}: {}",
                        state.is_running() ? "another program is writing" : "left unfinished",
                        DescribeUnfinished(state));
  }
  return text;
}

void RequireComplete(const std::filesystem::path& dir, const DownloadState& state) {
  if (state.is_complete()) return;
  throw Error(ErrorCode::kBadModel, fmt::format("{}: the download is not complete: {}; {}",
                                                dir.string(), DescribeDownload(state), state.next));
}

std::string CompressNames(const std::vector<std::string>& names,
                          const std::vector<std::string>& all) {
  std::string text;
  size_t place = 0;  // in `all`
  for (size_t i = 0; i < names.size();) {
    while (place < all.size() && all[place] != names[i]) ++place;
    size_t count = 1;
    while (i + count < names.size() && place + count < all.size() &&
           names[i + count] == all[place + count]) {
      ++count;
    }
    if (!text.empty()) text += ", ";
    text +=
        count < 3 ? names[i] : fmt::format("{} to {} ({})", names[i], names[i + count - 1], count);
    if (count == 2) text += ", " + names[i + 1];
    i += count;
  }
  return text;
}

bool IsUnwritten(const File& file) {
  const uint64_t size = file.size();
  if (FileExists(file.path().string() + ".aria2")) return true;
  if (size < kTailBytes) return false;
  std::string tail(kTailBytes, '\0');
  file.ReadAt(size - kTailBytes, tail.size(), tail.data());
  return tail.find_first_not_of('\0') == std::string::npos;
}

}  // namespace thimble
