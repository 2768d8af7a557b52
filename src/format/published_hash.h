#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace thimble {

/// The hash of a file as its hub publishes it.
struct PublishedHash {
  enum class Kind : uint8_t {
    kSha256,   // of large files
    kGitBlob,  // of small ones: SHA-1 of "blob <size>\0" and the bytes
  };
  Kind kind = Kind::kSha256;
  std::string hex;  // lower case
};

/// The hash that the hub's tools left beside `path`: the name of the blob that it links to in their
/// cache, or the second line of `.cache/huggingface/download/<name>.metadata`. Nothing where there
/// is none; such notes are optional and never an error.
std::optional<PublishedHash> FindPublishedHash(const std::filesystem::path& path);

/// Hashes a file piece by piece.
class FileHasher {
 public:
  /// `size` is that of the whole file.
  FileHasher(PublishedHash::Kind kind, uint64_t size);
  ~FileHasher();
  FileHasher(const FileHasher&) = delete;
  FileHasher& operator=(const FileHasher&) = delete;

  /// Error(kRuntime) where the library fails.
  void Update(std::span<const std::byte> bytes);
  /// The hash of all that came, in lower-case hexadecimal. Once.
  std::string Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace thimble
