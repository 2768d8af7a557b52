#include "format/published_hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "io/file.h"

namespace thimble {
namespace {

constexpr size_t kSha256Digits = 64;
constexpr size_t kSha1Digits = 40;
constexpr uint64_t kMaxNoteBytes = 4096;

void RequireDigest(int result) {
  if (result != 1) throw Error(ErrorCode::kRuntime, "the library for checksums, libcrypto, failed");
}

// A hash by its number of digits; names of other length are none.
std::optional<PublishedHash> AsHash(std::string_view text) {
  const auto is_hex = [](unsigned char c) { return std::isxdigit(c) != 0 && std::isupper(c) == 0; };
  if (!std::ranges::all_of(text, is_hex)) return std::nullopt;
  if (text.size() == kSha256Digits) {
    return PublishedHash{PublishedHash::Kind::kSha256, std::string(text)};
  }
  if (text.size() == kSha1Digits) {
    return PublishedHash{PublishedHash::Kind::kGitBlob, std::string(text)};
  }
  return std::nullopt;
}

std::optional<PublishedHash> FromBlobName(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(path, error);
  if (error || target.parent_path().filename() != "blobs") return std::nullopt;
  return AsHash(target.filename().string());
}

// The lines of a note are the commit, the file's ETag and a time.
std::optional<PublishedHash> FromNote(const std::filesystem::path& path) {
  const std::filesystem::path note = path.parent_path() / ".cache" / "huggingface" / "download" /
                                     (path.filename().string() + ".metadata");
  std::error_code error;
  if (!std::filesystem::is_regular_file(note, error)) return std::nullopt;
  std::string text;
  try {
    text = ReadTextFile(note, kMaxNoteBytes);
  } catch (const Error&) {
    return std::nullopt;
  }
  const size_t first = text.find('\n');
  if (first == std::string::npos) return std::nullopt;
  std::string_view tag = text;
  tag.remove_prefix(first + 1);
  tag = tag.substr(0, tag.find_first_of("\r\n"));
  if (tag.starts_with("W/")) tag.remove_prefix(2);
  if (tag.size() >= 2 && tag.front() == '"' && tag.back() == '"')
    tag = tag.substr(1, tag.size() - 2);
  return AsHash(tag);
}

}  // namespace

std::optional<PublishedHash> FindPublishedHash(const std::filesystem::path& path) {
  const std::optional<PublishedHash> blob = FromBlobName(path);
  return blob ? blob : FromNote(path);
}

struct FileHasher::State {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context{EVP_MD_CTX_new(),
                                                                  &EVP_MD_CTX_free};
};

FileHasher::FileHasher(PublishedHash::Kind kind, uint64_t size) : state_(new State) {
  const bool is_git = kind == PublishedHash::Kind::kGitBlob;
  RequireDigest(state_->context ? 1 : 0);
  RequireDigest(
      EVP_DigestInit_ex(state_->context.get(), is_git ? EVP_sha1() : EVP_sha256(), nullptr));
  if (!is_git) return;
  const std::string head = fmt::format("blob {}", size);
  Update(std::as_bytes(std::span(head.c_str(), head.size() + 1)));  // with its NUL
}

FileHasher::~FileHasher() = default;

void FileHasher::Update(std::span<const std::byte> bytes) {
  RequireDigest(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()));
}

std::string FileHasher::Finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  RequireDigest(EVP_DigestFinal_ex(state_->context.get(), digest.data(), &size));
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace thimble
