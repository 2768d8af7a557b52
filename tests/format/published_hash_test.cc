#include "format/published_hash.h"

#include <gtest/gtest.h>

#include <string>

#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

// Of "abc", from FIPS 180-2 and from `git hash-object`.
constexpr const char* kSha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr const char* kGitBlob = "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f";

std::string HashOf(PublishedHash::Kind kind, const std::string& text) {
  FileHasher hasher(kind, text.size());
  // In pieces.
  for (const char& c : text) hasher.Update(std::as_bytes(std::span(&c, 1)));
  return hasher.Finish();
}

TEST(FileHasherTest, GivesThePublishedHashes) {
  EXPECT_EQ(HashOf(PublishedHash::Kind::kSha256, "abc"), kSha256);
  EXPECT_EQ(HashOf(PublishedHash::Kind::kGitBlob, "abc"), kGitBlob);
}

TEST(PublishedHashTest, IsTheNameOfTheBlob) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "blobs");
  std::filesystem::create_directories(dir / "snapshots/c0");
  WriteText(dir / "blobs" / kSha256, "abc");
  const std::filesystem::path link = dir / "snapshots/c0/model.safetensors";
  std::filesystem::create_symlink(std::filesystem::path("../../blobs") / kSha256, link);
  const auto hash = FindPublishedHash(link);
  ASSERT_TRUE(hash.has_value());
  EXPECT_EQ(hash->kind, PublishedHash::Kind::kSha256);
  EXPECT_EQ(hash->hex, kSha256);
}

TEST(PublishedHashTest, IsInTheNotesBesideADownload) {
  const TempDir dir;
  const std::filesystem::path notes = dir / ".cache/huggingface/download";
  std::filesystem::create_directories(notes);
  WriteText(dir / "a", "abc");
  const auto note = [&](const std::string& tag) {
    WriteText(notes / "a.metadata", "0123abc\n" + tag + "\n1700000000.5\n");
    return FindPublishedHash(dir / "a");
  };
  EXPECT_EQ(note(kSha256)->hex, kSha256);
  EXPECT_EQ(note(kGitBlob)->kind, PublishedHash::Kind::kGitBlob);
  EXPECT_EQ(note("W/\"" + std::string(kGitBlob) + "\"")->hex, kGitBlob);
  EXPECT_FALSE(note("\"some-other-tag\"").has_value());
  EXPECT_FALSE(note("").has_value());
  WriteText(notes / "a.metadata", "x");
  EXPECT_FALSE(FindPublishedHash(dir / "a").has_value());
}

TEST(PublishedHashTest, MayBeUnknown) {
  const TempDir dir;
  WriteText(dir / "a", "abc");
  EXPECT_FALSE(FindPublishedHash(dir / "a").has_value());
  EXPECT_FALSE(FindPublishedHash(dir / "none").has_value());
}

}  // namespace
}  // namespace thimble
