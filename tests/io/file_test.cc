#include "io/file.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"
#include "support/without_capability.h"

namespace thimble {
namespace {

class FileTest : public testing::Test {
 protected:
  FileTest() { WriteText(path_, "0123456789"); }

  TempDir dir_;
  const std::filesystem::path path_ = dir_ / "file";
};

TEST_F(FileTest, ReadsAnyRange) {
  const File file = File::Open(path_);
  EXPECT_EQ(file.size(), 10U);
  EXPECT_EQ(file.path(), path_);
  std::string text(4, '\0');
  file.ReadAt(3, 4, text.data());
  EXPECT_EQ(text, "3456");
  file.ReadAt(10, 0, text.data());
}

TEST_F(FileTest, FailsBeyondTheEndAndNamesTheOffset) {
  const File file = File::Open(path_);
  std::string text(8, '\0');
  ExpectError(ErrorCode::kRuntime, {path_.string(), "ends at byte 10", "5 bytes more"},
              [&] { file.ReadAt(7, 8, text.data()); });
}

TEST_F(FileTest, FailsWhereTheFileWasShortenedAfterOpening) {
  const File file = File::Open(path_);
  Truncate(path_, 6);
  std::string text(10, '\0');
  ExpectError(ErrorCode::kRuntime, {path_.string(), "ends at byte 4"},
              [&] { file.ReadAt(0, 10, text.data()); });
}

TEST_F(FileTest, NamesWhatCannotBeOpened) {
  ExpectBadModel({(dir_ / "none").string(), "No such file"}, [&] { File::Open(dir_ / "none"); });
  ExpectBadModel({dir_.path().string(), "directory"}, [&] { File::Open(dir_.path()); });
  ExpectBadModel({"/dev/null", "expected a regular file, found a device"},
                 [] { File::Open("/dev/null"); });
}

TEST_F(FileTest, NamesAFileThatMayNotBeRead) {
  const WithoutCapability bound_by_permissions[] = {WithoutCapability(CAP_DAC_OVERRIDE),
                                                    WithoutCapability(CAP_DAC_READ_SEARCH)};
  std::filesystem::permissions(path_, std::filesystem::perms::none);
  ExpectBadModel({path_.string(), "Permission denied"}, [&] { File::Open(path_); });
}

TEST_F(FileTest, MovesItsDescriptor) {
  File first = File::Open(path_);
  const int descriptor = first.descriptor();
  File second = std::move(first);
  EXPECT_EQ(second.descriptor(), descriptor);
  File third = File::Open(path_);
  third = std::move(second);
  EXPECT_EQ(third.descriptor(), descriptor);
  char digit = 0;
  third.ReadAt(9, 1, &digit);
  EXPECT_EQ(digit, '9');
}

TEST_F(FileTest, ReadsTextUpToALimit) {
  EXPECT_EQ(ReadTextFile(path_, 10), "0123456789");
  ExpectBadModel({path_.string(), "10 B", "at most 9 B"}, [&] { ReadTextFile(path_, 9); });
  WriteText(path_, "");
  EXPECT_EQ(ReadTextFile(path_, 0), "");
}

}  // namespace
}  // namespace thimble
