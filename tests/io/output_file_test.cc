#include "io/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/syscall_filter.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

constexpr uint32_t kNamelessFlag = 020000000;  // of O_TMPFILE, without O_DIRECTORY
constexpr uint32_t kOpenFlags = 2;             // the argument of openat

void Save(const std::filesystem::path& path, const std::string& text) {
  OutputFile file(path);
  file.Write(text);
  file.Commit();
}

struct stat StatusOf(const std::filesystem::path& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) throw std::runtime_error(std::strerror(errno));
  return status;
}

class OutputFileTest : public testing::Test {
 protected:
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  // A device of our own, so that no test can harm the machine's: as /dev/null is made.
  bool MakeNullDevice(const std::filesystem::path& path) const {
    if (::mknod(path.c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0) return false;
    const int descriptor = ::open(path.c_str(), O_WRONLY);
    if (descriptor >= 0) ::close(descriptor);
    return descriptor >= 0;
  }

  TempDir dir_;
  const std::filesystem::path path_ = dir_ / "file";
};

TEST_F(OutputFileTest, IsThereAsAWholeAfterCommit) {
  {
    OutputFile file(path_);
    file.Write("one ");
    file.Write("two");
    EXPECT_TRUE(Names().empty());
    file.Commit();
  }
  EXPECT_EQ(ReadBytes(path_), "one two");
  EXPECT_EQ(Names(), std::vector<std::string>{"file"});
}

TEST_F(OutputFileTest, LeavesAllAsItWasWithoutCommit) {
  WriteText(path_, "old");
  { OutputFile(path_).Write("new"); }
  { OutputFile(dir_ / "other").Write("new"); }
  EXPECT_EQ(ReadBytes(path_), "old");
  EXPECT_EQ(Names(), std::vector<std::string>{"file"});
}

TEST_F(OutputFileTest, KeepsPermissionsOfAnExistingFile) {
  WriteText(path_, "old");
  ::chmod(path_.c_str(), 0640);
  Save(path_, "new");
  EXPECT_EQ(ReadBytes(path_), "new");
  EXPECT_EQ(StatusOf(path_).st_mode & 07777, 0640U);
}

TEST_F(OutputFileTest, KeepsTheOwnerOfAnExistingFile) {
  WriteText(path_, "old");
  if (::chown(path_.c_str(), 12345, 54321) != 0) GTEST_SKIP() << "needs root, to give a file away";
  Save(path_, "new");
  EXPECT_EQ(StatusOf(path_).st_uid, 12345U);
  EXPECT_EQ(StatusOf(path_).st_gid, 54321U);
}

TEST_F(OutputFileTest, FollowsLinksAndKeepsThem) {
  std::filesystem::create_directory(dir_ / "folder");
  const auto target = dir_ / "folder/target";
  std::filesystem::create_symlink("folder/target", path_);
  std::filesystem::create_symlink("file", dir_ / "link");
  Save(dir_ / "link", "into a free name");
  EXPECT_EQ(ReadBytes(target), "into a free name");
  Save(dir_ / "link", "over a file");
  EXPECT_EQ(ReadBytes(target), "over a file");
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
  EXPECT_TRUE(std::filesystem::is_symlink(dir_ / "link"));
}

TEST_F(OutputFileTest, KeepsOtherNamesOfTheFile) {
  WriteText(path_, "old and longer than the new");
  std::filesystem::create_hard_link(path_, dir_ / "twin");
  Save(path_, "new");
  EXPECT_EQ(ReadBytes(dir_ / "twin"), "new");
  EXPECT_EQ(StatusOf(path_).st_nlink, 2U);
}

TEST_F(OutputFileTest, WritesPipesStraight) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = ReadBytes(path_); });
  Save(path_, "through the pipe");
  reader.join();
  EXPECT_EQ(read, "through the pipe");
  EXPECT_TRUE(S_ISFIFO(StatusOf(path_).st_mode));
}

TEST_F(OutputFileTest, WritesDevicesStraight) {
  if (!MakeNullDevice(path_)) GTEST_SKIP() << "may not make and open a device: needs root";
  std::filesystem::create_symlink("file", dir_ / "link");
  Save(path_, "nothing");
  Save(dir_ / "link", "nothing");
  EXPECT_TRUE(S_ISCHR(StatusOf(path_).st_mode));
  EXPECT_TRUE(S_ISLNK(StatusOf(dir_ / "link").st_mode));
  ExpectError(ErrorCode::kUsage, {path_.string(), "a device"},
              [&] { OutputFile(path_, OutputFile::Accept::kFilesOnly); });
}

TEST_F(OutputFileTest, WritesToDescriptorsByTheirNames) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::filesystem::create_symlink("/dev/fd/" + std::to_string(ends[1]), path_);
  Save(path_, "down");
  char text[5] = {};
  EXPECT_EQ(::read(ends[0], text, 4), 4);
  EXPECT_STREQ(text, "down");
  ExpectError(ErrorCode::kRuntime, {"Bad file descriptor"},
              [&] { OutputFile("/dev/fd/" + std::to_string(ends[0])); });
  ::close(ends[0]);
  ::close(ends[1]);
  ExpectError(ErrorCode::kRuntime, {"Bad file descriptor"}, [&] { OutputFile(path_.string()); });
}

TEST_F(OutputFileTest, AFileBehindADescriptorIsContinuedNotReplaced) {
  const int descriptor = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::write(descriptor, "first ", 6), 6);
  Save("/dev/fd/" + std::to_string(descriptor), "second ");
  ASSERT_EQ(::write(descriptor, "third", 5), 5);
  ::close(descriptor);
  EXPECT_EQ(ReadBytes(path_), "first second third");
}

TEST_F(OutputFileTest, SaysAtOnceWhatCannotBeWritten) {
  const auto refused = [](const std::filesystem::path& path, ErrorCode code, const char* reason) {
    ExpectError(code, {path.string(), reason}, [&] { OutputFile{path}; });
    ExpectError(code, {path.string(), reason}, [&] { CheckOutputFile(path); });
  };
  refused(dir_ / "missing/file", ErrorCode::kRuntime, "No such file or directory; make its folder");
  refused(dir_.path(), ErrorCode::kUsage, "a directory");
  refused(dir_ / "", ErrorCode::kUsage, "a directory");
  refused(dir_ / "new/", ErrorCode::kUsage, "a directory");
  refused("", ErrorCode::kUsage, "empty name");
  WriteText(path_, "old");
  refused(path_ / "file", ErrorCode::kRuntime, "Not a directory");
  refused(dir_ / std::string(300, 'x'), ErrorCode::kRuntime, "File name too long");
  std::filesystem::create_symlink("loop", dir_ / "loop");
  refused(dir_ / "loop", ErrorCode::kRuntime, "Too many levels");
  EXPECT_EQ(Names(), (std::vector<std::string>{"file", "loop"}));
}

TEST_F(OutputFileTest, RefusesAPipeWhereTheResultIsToBeReadAgain) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  ExpectError(ErrorCode::kUsage, {path_.string(), "a pipe"},
              [&] { OutputFile(path_, OutputFile::Accept::kFilesOnly); });
}

TEST_F(OutputFileTest, CanGoElsewhereWhereItsFolderHasVanished) {
  std::filesystem::create_directory(dir_ / "folder");
  OutputFile file(dir_ / "folder/file");
  file.Write("kept");
  std::filesystem::remove_all(dir_ / "folder");
  ExpectError(ErrorCode::kRuntime, {"folder/file", "No such file"}, [&] { file.Commit(); });
  file.CommitTo(path_);
  EXPECT_EQ(ReadBytes(path_), "kept");
}

TEST_F(OutputFileTest, WorksOnFileSystemsWithoutNamelessFiles) {
  const RefusedCall nameless = {__NR_openat, EOPNOTSUPP, kOpenFlags, kNamelessFlag};
  const bool ran = RunWithout(nameless, [&] {
    WriteText(path_, "old");
    ::chmod(path_.c_str(), 0640);
    { OutputFile(path_).Write("dropped"); }
    EXPECT_EQ(ReadBytes(path_), "old");
    Save(path_, "new");
    OutputFile interrupted(dir_ / "other");
    interrupted.Write("half");
    EXPECT_EQ(Names().size(), 2U);
    RemoveHiddenOutputFiles();
    EXPECT_EQ(Names(), std::vector<std::string>{"file"});
  });
  if (!ran) GTEST_SKIP() << "may not refuse system calls to itself";
  EXPECT_EQ(ReadBytes(path_), "new");
  EXPECT_EQ(StatusOf(path_).st_mode & 07777, 0640U);
  EXPECT_EQ(Names(), std::vector<std::string>{"file"});
}

TEST_F(OutputFileTest, OverwritesWhereTheFolderTakesNoNewFile) {
  constexpr uint32_t kCreate = O_CREAT;
  WriteText(path_, "old and longer");
  // Neither a nameless file nor one with a name can be made.
  const bool ran = RunWithout({__NR_openat, EROFS, kOpenFlags, kCreate | kNamelessFlag}, [&] {
    { OutputFile untouched(path_); }
    EXPECT_EQ(ReadBytes(path_), "old and longer");
    Save(path_, "new");
    ExpectError(ErrorCode::kRuntime, {"Read-only"}, [&] { OutputFile(dir_ / "other"); });
  });
  if (!ran) GTEST_SKIP() << "may not refuse system calls to itself";
  EXPECT_EQ(ReadBytes(path_), "new");
}

TEST_F(OutputFileTest, SaysBeforehandThatTheDriveIsTooSmall) {
  CheckOutputFile(path_, 1);
  ExpectError(ErrorCode::kRuntime, {path_.string(), "may take", "free; make room"},
              [&] { CheckOutputFile(path_, uint64_t{1} << 62); });
  EXPECT_TRUE(Names().empty());
}

TEST_F(OutputFileTest, SaysWhatAFullDriveNeeds) {
  const bool ran = RunWithout({__NR_write, ENOSPC}, [&] {
    WriteText(path_, "");
    OutputFile file(path_);
    ExpectError(ErrorCode::kRuntime, {path_.string(), "No space left", "make room"},
                [&] { file.Write("x"); });
  });
  if (!ran) GTEST_SKIP() << "may not refuse system calls to itself";
  EXPECT_EQ(Names(), std::vector<std::string>{"file"});
}

}  // namespace
}  // namespace thimble
