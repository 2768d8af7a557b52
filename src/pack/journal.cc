#include "pack/journal.h"

#include <bit>
#include <charconv>
#include <system_error>

#include "base/error.h"
#include "format/checksum.h"
#include "format/model_files.h"

namespace thimble {
namespace {

// Exactly, so that a pack that went on sums the same.
std::string BitsOf(double number) { return FormatChecksum(std::bit_cast<uint64_t>(number)); }

std::string LineOf(const Journal::Entry& entry) {
  const std::string text = std::to_string(entry.extent) + " " + std::to_string(entry.bytes) + " " +
                           FormatChecksum(entry.checksum) + " " + BitsOf(entry.loss.differences) +
                           " " + BitsOf(entry.loss.weights);
  return text + " " + FormatChecksum(ChecksumOf(text)) + "\n";
}

// The entry of a line without its newline, or nothing where it is no such line.
std::optional<Journal::Entry> ParseLine(std::string_view line) {
  Journal::Entry entry;
  const char* last = line.data() + line.size();
  const char* at = line.data();
  const auto read = [&](auto* number, int base) {
    const auto [end, error] = std::from_chars(at, last, *number, base);
    if (error != std::errc() || end == last || *end != ' ') return false;
    at = end + 1;
    return true;
  };
  uint64_t differences = 0;
  uint64_t weights = 0;
  const bool read_all = read(&entry.extent, 10) && read(&entry.bytes, 10) &&
                        read(&entry.checksum, 16) && read(&differences, 16) && read(&weights, 16);
  if (!read_all) return std::nullopt;
  entry.loss = {std::bit_cast<double>(differences), std::bit_cast<double>(weights)};
  std::string expected = LineOf(entry);
  expected.pop_back();
  if (line != expected) return std::nullopt;
  return entry;
}

}  // namespace

Journal::Journal(const std::filesystem::path& path, const std::string& identity, size_t num_extents)
    : path_(path), entries_(num_extents) {
  const std::string head = "thimble-journal 4 " + identity + "\n";
  if (!FileExists(path)) WriteWhole(path, head);
  file_ = std::make_unique<DiskFile>(path);
  if (!file_->TryLock()) {
    throw Error(ErrorCode::kUsage, "another process is writing the container of " + path.string() +
                                       "; wait for it, or stop it first");
  }
  Load(head);
}

void Journal::Load(const std::string& head) {
  std::string text;
  text.resize(file_->Size());
  file_->ReadAt(0, text.size(), text.data());
  if (!text.starts_with(head)) {
    throw Error(ErrorCode::kUsage,
                path_.parent_path().string() +
                    " holds an unfinished container of another model, or of other options; remove "
                    "the directory, or choose another one with -o");
  }
  size_t at = head.size();
  while (at < text.size()) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    const auto entry = ParseLine(text.substr(at, end - at));
    if (!entry || entry->extent >= entries_.size()) break;
    entries_[entry->extent] = *entry;
    at = end + 1;
  }
  // What follows is torn: the process died while writing it.
  file_->Truncate(at);
  end_ = at;
}

void Journal::Append(std::span<const Entry> entries) {
  std::string lines;
  for (const Entry& entry : entries) {
    lines += LineOf(entry);
    entries_[entry.extent] = entry;
  }
  file_->WriteAt(end_, lines);
  file_->Sync();
  end_ += lines.size();
}

void Journal::Remove() {
  std::error_code error;
  std::filesystem::remove(path_, error);
  if (error) {
    throw Error(ErrorCode::kRuntime,
                "cannot remove " + path_.string() + ": " + error.message() + "; remove it");
  }
}

}  // namespace thimble
