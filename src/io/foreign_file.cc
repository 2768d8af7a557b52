#include "io/foreign_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "base/byte_size.h"
#include "base/error.h"

namespace thimble {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr const char* kGetFile =
    "download the file itself; a model with access rules needs the token of your account";
constexpr const char* kGetSafetensors =
    "Thimble reads safetensors: download the model as its makers published it";
constexpr const char* kUnpack = "unpack it, or download the file itself";

struct Signature {
  std::string_view start;
  const char* found;
  const char* remedy;
};

constexpr std::array kSignatures = {
    Signature{"GGUF", "a GGUF file", kGetSafetensors},
    Signature{"\x89HDF", "an HDF5 file", kGetSafetensors},
    Signature{"\x93NUMPY", "a NumPy array", kGetSafetensors},
    Signature{"\x80\x02", "a pickled PyTorch checkpoint", kGetSafetensors},
    Signature{"PK\x03\x04", "a zip archive, as PyTorch checkpoints are", kGetSafetensors},
    Signature{"\x1F\x8B", "a file compressed with gzip", kUnpack},
    Signature{"\x28\xB5\x2F\xFD", "a file compressed with zstd", kUnpack},
    Signature{"\xFD"
              "7zXZ",
              "a file compressed with xz", kUnpack},
    Signature{"BZh", "a file compressed with bzip2", kUnpack},
    Signature{"%PDF-", "a PDF document", kGetFile},
};

// "... size 16348", the last line of a pointer.
std::string DescribePointer(std::string_view head) {
  constexpr std::string_view kSize = "\nsize ";
  const size_t at = head.find(kSize);
  uint64_t size = 0;
  if (at != std::string_view::npos) {
    const char* first = head.data() + at + kSize.size();
    std::from_chars(first, head.data() + head.size(), size);
  }
  if (size == 0) return "a Git LFS pointer";
  return fmt::format("a Git LFS pointer to a file of {}", FormatBytes(size));
}

bool StartsWithTag(std::string_view text) {
  std::string lower;
  for (const char c : text.substr(0, 16)) {
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return std::ranges::any_of(std::array{"<!doctype", "<html", "<head", "<body", "<?xml"},
                             [&](std::string_view tag) { return lower.starts_with(tag); });
}

// Either byte order, with a mark or shown by an ASCII character with a zero beside it.
bool IsWideText(std::string_view head) {
  if (head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF")) return true;
  return head.starts_with("{\0"sv) || head.starts_with("\0{"sv);
}

// The length of a safetensors header, below 2^40, and the header: its length may look like any of
// the signatures.
bool IsSafetensors(std::string_view head) {
  return head.size() > 8 && head[8] == '{' && head.substr(5, 3) == "\0\0\0"sv;
}

}  // namespace

std::optional<ForeignFile> FindForeign(std::string_view head) {
  if (head.empty()) return ForeignFile{"an empty file", "download it again"};
  if (IsSafetensors(head)) return std::nullopt;
  std::string_view text = WithoutByteOrderMark(head);
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (text.starts_with("version https://git-lfs")) {
    return ForeignFile{DescribePointer(text), "run `git lfs pull` in its directory"};
  }
  if (StartsWithTag(text)) return ForeignFile{"a web page", kGetFile};
  if (IsWideText(head)) return ForeignFile{"text in UTF-16", "save it as UTF-8"};
  for (const Signature& signature : kSignatures) {
    if (head.starts_with(signature.start)) return ForeignFile{signature.found, signature.remedy};
  }
  if (head.size() == kForeignHeadBytes && head.substr(257).starts_with("ustar")) {
    return ForeignFile{"a tar archive", kUnpack};
  }
  return std::nullopt;
}

void RefuseForeign(const File& file) {
  std::string head(std::min<uint64_t>(file.size(), kForeignHeadBytes), '\0');
  file.ReadAt(0, head.size(), head.data());
  const std::optional<ForeignFile> foreign = FindForeign(head);
  if (!foreign) return;
  throw Error(ErrorCode::kBadModel,
              fmt::format("{} is {}; {}", file.path().string(), foreign->found, foreign->remedy));
}

std::string_view WithoutByteOrderMark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

std::string ReadModelText(const std::filesystem::path& path, uint64_t max_bytes) {
  RefuseForeign(File::Open(path));
  std::string text = ReadTextFile(path, max_bytes);
  text.erase(0, text.size() - WithoutByteOrderMark(text).size());
  return text;
}

}  // namespace thimble
