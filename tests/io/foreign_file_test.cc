#include "io/foreign_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using testing::HasSubstr;

TEST(ForeignFileTest, NamesWhatTookThePlaceOfAFile) {
  const struct {
    std::string head;
    const char* found;
    const char* remedy;
  } cases[] = {
      {"", "an empty file", "download it again"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 2000\n",
       "Git LFS pointer to a file of 2.00 kB", "git lfs pull"},
      {"\xEF\xBB\xBFversion https://git-lfs", "Git LFS pointer", "git lfs pull"},
      {"<!DOCTYPE html><html>", "web page", "token"},
      {"\n  <HTML lang=en>", "web page", "token"},
      {"<?xml version=\"1.0\"?><Error>", "web page", "token"},
      {"\xFF\xFE{", "UTF-16", "UTF-8"},
      {std::string("{\0\"\0", 4), "UTF-16", "UTF-8"},
      {std::string("\0{\0\"", 4), "UTF-16", "UTF-8"},
      {"GGUF\x03", "GGUF", "safetensors"},
      {"\x1F\x8B\x08", "gzip", "unpack"},
      {"PK\x03\x04", "zip", "safetensors"},
      {"\x80\x02}q", "PyTorch", "safetensors"},
      {"\x28\xB5\x2F\xFD", "zstd", "unpack"},
      {std::string(257, 'x') + "ustar" + std::string(250, ' '), "tar archive", "unpack"},
  };
  for (const auto& sample : cases) {
    const auto foreign = FindForeign(sample.head);
    ASSERT_TRUE(foreign.has_value()) << sample.found;
    EXPECT_THAT(foreign->found, HasSubstr(sample.found));
    EXPECT_THAT(foreign->remedy, HasSubstr(sample.remedy));
  }
}

TEST(ForeignFileTest, LeavesTheRightFilesAlone) {
  for (const std::string head : {"{\"a\": 1}", "  {}", "IQ== 0\n", "[1]", "x", "<think>"}) {
    EXPECT_FALSE(FindForeign(head).has_value()) << head;
  }
}

// The length of a header may begin with the bytes of any signature.
TEST(ForeignFileTest, KnowsASafetensorsHeaderWhateverItsLength) {
  for (const std::string& length :
       {std::string("\x80\x02\0\0\0\0\0\0", 8), std::string("\x1F\x8B\0\0\0\0\0\0", 8),
        std::string("\xFF\xFE\0\0\0\0\0\0", 8)}) {
    EXPECT_FALSE(FindForeign(length + "{}").has_value());
    EXPECT_TRUE(FindForeign(length + "x").has_value());
  }
}

TEST(ForeignFileTest, ReadsTextWithoutItsByteOrderMark) {
  const TempDir dir;
  WriteText(dir / "a.json", "\xEF\xBB\xBF{}");
  EXPECT_EQ(ReadModelText(dir / "a.json", 100), "{}");
  WriteText(dir / "b.json", "<html>");
  ExpectBadModel({(dir / "b.json").string(), "is a web page"},
                 [&] { ReadModelText(dir / "b.json", 100); });
}

// It waited for the other end of the pipe.
TEST(ForeignFileTest, RefusesAPipeAtOnce) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  ExpectBadModel({(dir / "pipe").string(), "expected a regular file, found a pipe"},
                 [&] { File::Open(dir / "pipe"); });
  ExpectBadModel({"found a pipe"}, [&] { File::OpenDirect(dir / "pipe"); });
  ExpectBadModel({"found a directory"}, [&] { File::Open(dir.path()); });
}

}  // namespace
}  // namespace thimble
