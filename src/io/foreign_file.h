#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "io/file.h"

namespace thimble {

/// As much of the start of a file as tells what it is.
inline constexpr size_t kForeignHeadBytes = 512;

/// What a file is that took the place of a file of a model, and what to do about it.
struct ForeignFile {
  std::string found;   // "a Git LFS pointer to a file of 16.3 GB"
  std::string remedy;  // "run `git lfs pull` in its directory"
};

/// Recognises by its first bytes a file that is none of a model's: an empty one, a Git LFS pointer,
/// a web page, text in UTF-16, an archive, or weights in another format. Nothing for all others.
std::optional<ForeignFile> FindForeign(std::string_view head);

/// Error(kBadModel) where FindForeign recognises the start of the file.
void RefuseForeign(const File& file);

/// `text` without the byte order mark that some editors put before UTF-8.
std::string_view WithoutByteOrderMark(std::string_view text);

/// The text of one of a model's files, as ReadTextFile reads it, without a byte order mark.
/// Error(kBadModel) where it is a foreign file.
std::string ReadModelText(const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace thimble
