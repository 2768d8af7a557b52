#include "format/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "format/json_events.h"
#include "io/foreign_file.h"

namespace thimble {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr size_t kMaxRank = 8;
constexpr const char* kRemedy = "; the file is damaged: download it again";

struct StoredType {
  std::string_view name;
  uint64_t bits;
};
// Every type of the format, since parts that Thimble does not run may hold any.
constexpr std::array<StoredType, 20> kStoredTypes = {{
    {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
    {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
    {"F32", 32}, {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

const StoredType* FindType(std::string_view name) {
  const auto* found = std::ranges::find(kStoredTypes, name, &StoredType::name);
  return found == kStoredTypes.end() ? nullptr : found;
}

// Bytes of a tensor, or nothing where they do not fit 64 bits or are not whole.
std::optional<uint64_t> StoredBytes(const SafetensorsEntry& entry) {
  std::optional<uint64_t> bits = FindType(entry.dtype)->bits;
  for (const uint64_t dim : entry.shape) {
    bits = CheckedMul(*bits, dim);
    if (!bits) return std::nullopt;
  }
  return *bits % 8 == 0 ? std::optional(*bits / 8) : std::nullopt;
}

// Reads {"name": {"dtype": .., "shape": [..], "data_offsets": [..]}, "__metadata__": {..}}.
class HeaderHandler : public JsonHandler {
 public:
  explicit HeaderHandler(const std::string& source) : source_(source) {}

  void Open(char bracket) override {
    ++depth_;
    const bool list = depth_ == 3 && !in_metadata_ && field_ != "dtype";
    if (bracket != (list ? '[' : '{') || (depth_ >= 3 && !list)) FailShape();
    if (depth_ == 3 && field_ == "data_offsets") offsets_.clear();
  }

  void Close() override {
    if (depth_ == 2 && !in_metadata_) FinishEntry();
    --depth_;
  }

  void Key(std::string_view key) override {
    if (depth_ == 1) {
      StartEntry(key);
    } else if (!fields_.emplace(key).second) {
      Fail("the field '" + std::string(key) + "' is given twice");
    } else if (!in_metadata_ && key != "dtype" && key != "shape" && key != "data_offsets") {
      Fail("expected the fields dtype, shape and data_offsets, found '" + std::string(key) + "'");
    }
    field_ = depth_ == 1 ? std::string_view() : key;
  }

  void Scalar(const JsonScalar& scalar) override {
    if (depth_ == 2 && in_metadata_ && scalar.kind == JsonScalar::Kind::kString) return;
    if (depth_ == 2 && field_ == "dtype" && scalar.kind == JsonScalar::Kind::kString) {
      SetType(scalar.text);
    } else if (depth_ == 3 && scalar.kind == JsonScalar::Kind::kUnsigned) {
      AddNumber(scalar.number);
    } else {
      FailShape();
    }
  }

  std::vector<SafetensorsEntry> TakeEntries() { return std::move(entries_); }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    const std::string where =
        in_metadata_ ? "__metadata__: "
                     : (entries_.empty() ? "" : "tensor '" + entries_.back().name + "': ");
    throw Error(ErrorCode::kBadModel, source_ + ": header: " + where + what + kRemedy);
  }
  [[noreturn]] void FailShape() const {
    Fail(
        "expected an object of {dtype: name, shape: [sizes], data_offsets: [begin, end]}, "
        "found a value that does not fit" +
        (field_.empty() ? "" : " at '" + field_ + "'"));
  }

  void StartEntry(std::string_view key) {
    fields_.clear();
    in_metadata_ = key == "__metadata__";
    if (in_metadata_ && std::exchange(seen_metadata_, true)) Fail("given twice");
    if (!in_metadata_) entries_.emplace_back().name = key;
  }

  void SetType(std::string_view name) {
    const StoredType* type = FindType(name);
    if (type == nullptr) Fail("expected a dtype of safetensors, found '" + std::string(name) + "'");
    entries_.back().dtype = type->name;
  }

  void AddNumber(uint64_t number) {
    std::vector<uint64_t>& list = field_ == "shape" ? entries_.back().shape : offsets_;
    if (list.size() == kMaxRank) {
      Fail("expected at most " + std::to_string(kMaxRank) + " numbers in '" + field_ +
           "', found more");
    }
    list.push_back(number);
  }

  void FinishEntry() {
    if (fields_.size() != 3) Fail("expected the fields dtype, shape and data_offsets, found fewer");
    if (offsets_.size() != 2) {
      Fail("expected two data_offsets, found " + std::to_string(offsets_.size()));
    }
    entries_.back().begin = offsets_[0];
    entries_.back().end = offsets_[1];
  }

  const std::string& source_;
  std::vector<SafetensorsEntry> entries_;
  std::set<std::string, std::less<>> fields_;  // of the current object
  std::string field_;
  std::vector<uint64_t> offsets_;
  size_t depth_ = 0;
  bool in_metadata_ = false;
  bool seen_metadata_ = false;
};

[[noreturn]] void FailEntry(const std::string& source, const SafetensorsEntry& entry,
                            const std::string& what) {
  throw Error(ErrorCode::kBadModel, source + ": tensor '" + entry.name + "' (" +
                                        std::string(entry.dtype) + " " + FormatShape(entry.shape) +
                                        ", data_offsets [" + std::to_string(entry.begin) + ", " +
                                        std::to_string(entry.end) + "]): " + what + kRemedy);
}

void CheckUniqueNames(const std::vector<SafetensorsEntry>& entries, const std::string& source) {
  std::vector<const SafetensorsEntry*> sorted;
  sorted.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) sorted.push_back(&entry);
  std::ranges::sort(sorted, {}, &SafetensorsEntry::name);
  const auto twin = std::ranges::adjacent_find(sorted, {}, &SafetensorsEntry::name);
  if (twin != sorted.end()) FailEntry(source, **twin, "the header names it twice");
}

void CheckSizes(const std::vector<SafetensorsEntry>& entries, const std::string& source) {
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin > entry.end) FailEntry(source, entry, "it ends before it begins");
    const std::optional<uint64_t> bytes = StoredBytes(entry);
    if (!bytes) FailEntry(source, entry, "its size is not a number of bytes below 2^61");
    if (entry.end - entry.begin != *bytes) {
      FailEntry(source, entry,
                "its type and shape need " + std::to_string(*bytes) + " bytes, its offsets span " +
                    std::to_string(entry.end - entry.begin));
    }
  }
}

void CheckOverlaps(const std::vector<SafetensorsEntry>& entries, const std::string& source) {
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].begin >= entries[i - 1].end) continue;
    FailEntry(source, entries[i], "it overlaps '" + entries[i - 1].name + "'");
  }
}

// Fails on the first tensor that does not begin where the last one ended; a tensor outside the file
// is the likelier culprit, where there is one.
void CheckContiguous(const std::vector<SafetensorsEntry>& entries, uint64_t file_data_bytes,
                     const std::string& source) {
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin == end) {
      end = entry.end;
      continue;
    }
    const SafetensorsEntry& last = entries.back();
    if (last.end > file_data_bytes) {
      FailEntry(source, last,
                "it lies beyond the file's " + std::to_string(file_data_bytes) + " bytes of data");
    }
    FailEntry(source, entry,
              "it leaves " + std::to_string(entry.begin - end) + " unused bytes before it");
  }
}

void CheckFileSize(uint64_t data_start, uint64_t data_bytes, uint64_t file_size,
                   const std::string& source) {
  const std::optional<uint64_t> expected = CheckedAdd(data_start, data_bytes);
  if (expected == file_size) return;
  const std::string sizes = "expected " + (expected ? std::to_string(*expected) : "over 2^64") +
                            " bytes (header and data), found " + std::to_string(file_size);
  if (!expected || *expected > file_size) {
    throw Error(ErrorCode::kBadModel, source + " is truncated: " + sizes +
                                          "; the download is not complete: download it again");
  }
  throw Error(ErrorCode::kBadModel,
              source + " has bytes after its last tensor: " + sizes + kRemedy);
}

// The entries as the header has them, unchecked.
std::vector<SafetensorsEntry> ParseHeader(std::string_view json, const std::string& source) {
  if (!json.starts_with('{')) {
    throw Error(
        ErrorCode::kBadModel,
        source + ": expected a header that starts with '{', found something else" + kRemedy);
  }
  HeaderHandler handler(source);
  ParseJson(json, source, handler);
  return handler.TakeEntries();
}

uint64_t LengthOf(std::string_view head) {
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= uint64_t{static_cast<uint8_t>(head[i])} << (8 * i);
  }
  return length;
}

// Programs save a server's complaint ("Entry not found") under the name of the file.
void RefuseText(std::string_view head, const std::string& source) {
  if (!std::ranges::all_of(head, [](char c) { return c >= ' ' && c <= '~'; })) return;
  throw Error(ErrorCode::kBadModel,
              fmt::format("{} is text that begins \"{}\"; download the file itself", source, head));
}

// The length of the JSON header, proven to lie inside the file.
uint64_t HeaderLength(std::string_view head, uint64_t file_size, const std::string& source) {
  if (file_size < kLengthBytes || head.size() < kLengthBytes) {
    throw Error(ErrorCode::kBadModel, source + " is truncated: expected at least " +
                                          std::to_string(kLengthBytes) + " bytes, found " +
                                          std::to_string(file_size) + "; download it again");
  }
  RefuseText(head.substr(0, kLengthBytes), source);
  const uint64_t length = LengthOf(head);
  const uint64_t most = std::min(file_size - kLengthBytes, kMaxSafetensorsHeaderBytes);
  if (length > most) {
    throw Error(ErrorCode::kBadModel, source + ": expected a header of at most " +
                                          std::to_string(most) + " bytes (file size and a cap of " +
                                          std::to_string(kMaxSafetensorsHeaderBytes) +
                                          "), found the length " + std::to_string(length) +
                                          "; it is truncated or damaged: download it again");
  }
  return length;
}

}  // namespace

std::vector<SafetensorsEntry> ParseSafetensors(std::string_view head, uint64_t file_size,
                                               const std::string& source) {
  const uint64_t length = HeaderLength(head, file_size, source);
  THIMBLE_CHECK(head.size() >= kLengthBytes + length);
  const std::string_view json = head.substr(kLengthBytes, length);
  std::vector<SafetensorsEntry> entries = ParseHeader(json, source);
  CheckUniqueNames(entries, source);
  CheckSizes(entries, source);
  std::ranges::sort(
      entries, {}, [](const SafetensorsEntry& entry) { return std::pair(entry.begin, entry.end); });
  const uint64_t data_start = kLengthBytes + length;
  CheckOverlaps(entries, source);
  CheckContiguous(entries, file_size - data_start, source);
  CheckFileSize(data_start, entries.empty() ? 0 : entries.back().end, file_size, source);
  for (SafetensorsEntry& entry : entries) {
    entry.begin += data_start;
    entry.end += data_start;
  }
  return entries;
}

std::optional<uint64_t> StatedSize(const File& file) {
  const std::string source = file.path().string();
  if (file.size() < kLengthBytes) return std::nullopt;
  std::string head(kLengthBytes, '\0');
  file.ReadAt(0, head.size(), head.data());
  RefuseText(head, source);
  const uint64_t length = LengthOf(head);
  if (length <= kMaxSafetensorsHeaderBytes && length > file.size() - kLengthBytes) {
    return std::nullopt;
  }
  head.resize(kLengthBytes + HeaderLength(head, file.size(), source));
  file.ReadAt(kLengthBytes, head.size() - kLengthBytes, head.data() + kLengthBytes);
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : ParseHeader(head.substr(kLengthBytes), source)) {
    end = std::max(end, entry.end);
  }
  const std::optional<uint64_t> size = CheckedAdd(kLengthBytes + length, end);
  // A header that is damaged states nothing.
  ParseSafetensors(head, size.value_or(0), source);
  return size;
}

std::vector<SafetensorsEntry> ReadSafetensors(const File& file) {
  RefuseForeign(file);
  const std::string source = file.path().string();
  std::string head(std::min(file.size(), kLengthBytes), '\0');
  file.ReadAt(0, head.size(), head.data());
  head.resize(kLengthBytes + HeaderLength(head, file.size(), source));
  file.ReadAt(kLengthBytes, head.size() - kLengthBytes, head.data() + kLengthBytes);
  return ParseSafetensors(head, file.size(), source);
}

std::string FormatShape(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace thimble
