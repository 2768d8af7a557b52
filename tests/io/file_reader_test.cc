// Which reader a mode becomes, and what happens where the kernel lacks something.

#include "io/file_reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>

#include "base/byte_size.h"
#include "io/reader_kinds.h"
#include "support/aligned_memory.h"
#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/syscall_filter.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class FileReaderTest : public testing::Test {
 protected:
  FileReaderTest() { WriteText(path_, content_); }

  // Skips where this machine itself lacks what a test takes away or needs.
  void RequireUringAndDirect() {
    std::string reason;
    if (OpenKind({"", true, true, {}}, {path_}, &reason) == nullptr) GTEST_SKIP() << reason;
  }

  // Opens the file, reads all of it, and says what the reader was.
  std::string ReadAll(ReadMode mode) const {
    const auto reader = OpenReader({path_}, mode);
    constexpr size_t kBytes = 3 * BlockReader::kAlignment;
    AlignedMemory memory(kBytes);
    const ReadRequest read = {
        .bytes = kBytes, .needed_bytes = content_.size(), .out = memory.data()};
    ReadMonitor monitor;
    ReadBatch batch(monitor);
    reader->Submit({&read, 1}, ReadPriority::kDemand, batch);
    batch.Await();
    EXPECT_EQ(std::memcmp(memory.data(), content_.data(), content_.size()), 0);
    EXPECT_EQ(reader->read_bytes(), content_.size());
    return reader->Describe();
  }

  std::string ReadAllWithout(const RefusedCall& call, ReadMode mode) const {
    std::string description = "no reader";
    if (!RunWithout(call, [&] { description = ReadAll(mode); })) return "not allowed";
    return description;
  }

  TempDir dir_;
  const std::filesystem::path path_ = dir_ / "file";
  const std::string content_ = std::string(9000, 'a') + "z";
};

TEST_F(FileReaderTest, ReadsSmallModelsThroughThePageCache) {
  EXPECT_EQ(ReadAll(ReadMode::kAuto), "pread, buffered, depth 4 x 4 MiB");
  EXPECT_EQ(ReadAll(ReadMode::kBuffered), "pread, buffered, depth 4 x 4 MiB");
}

TEST_F(FileReaderTest, MapsWhereToldTo) {
  EXPECT_EQ(ReadAll(ReadMode::kMapped), "mmap, depth 4 x 4 MiB");
}

// As on kernels before 5.14.
TEST_F(FileReaderTest, MapsWithoutPopulating) {
  const std::string description =
      ReadAllWithout({__NR_madvise, EINVAL, 2, MADV_POPULATE_READ}, ReadMode::kMapped);
  if (description == "not allowed") GTEST_SKIP() << "this process may not filter system calls";
  EXPECT_EQ(description, "mmap, depth 4 x 4 MiB");
}

TEST_F(FileReaderTest, ReadsDirectWhereToldTo) {
  RequireUringAndDirect();
  if (IsSkipped()) return;
  EXPECT_EQ(ReadAll(ReadMode::kDirect), "io_uring, direct, depth 8 x 4 MiB");
}

TEST_F(FileReaderTest, ReadsLargeModelsDirect) {
  RequireUringAndDirect();
  if (IsSkipped()) return;
  const auto large = dir_ / "large";
  WriteText(large, "");
  std::filesystem::resize_file(large, 300 * kMiB);
  const auto reader = OpenReader({path_, large}, ReadMode::kAuto);
  EXPECT_EQ(reader->Describe(), "io_uring, direct, depth 8 x 4 MiB");
  EXPECT_EQ(reader->read_bytes(), 0U);
  EXPECT_THAT(OpenReader({large}, ReadMode::kBuffered)->Describe(), StartsWith("pread, buffered"));
}

TEST_F(FileReaderTest, FallsBackToThreadsWithoutIoUring) {
  RequireUringAndDirect();
  if (IsSkipped()) return;
  for (const RefusedCall& call :
       {RefusedCall{__NR_io_uring_setup, ENOSYS}, RefusedCall{__NR_io_uring_setup, EPERM},
        RefusedCall{__NR_io_uring_enter, EPERM}}) {
    const std::string description = ReadAllWithout(call, ReadMode::kDirect);
    if (description == "not allowed") GTEST_SKIP() << "this process may not filter system calls";
    EXPECT_EQ(description, "pread, direct, depth 4 x 4 MiB") << call.number << " " << call.error;
  }
}

TEST_F(FileReaderTest, FallsBackToThePageCacheWithoutDirectReads) {
  RequireUringAndDirect();
  if (IsSkipped()) return;
  // As file systems refuse it: when the file is opened, or only when it is read.
  for (const RefusedCall& call : {RefusedCall{__NR_openat, EINVAL, 2, O_DIRECT},
                                  RefusedCall{__NR_pread64, EINVAL, 2, 4096}}) {
    std::string description = "no reader";
    const bool allowed =
        RunWithout(call, [&] { description = OpenReader({path_}, ReadMode::kDirect)->Describe(); });
    if (!allowed) GTEST_SKIP() << "this process may not filter system calls";
    EXPECT_THAT(description, StartsWith("pread, buffered for lack of O_DIRECT")) << call.number;
  }
  EXPECT_THAT(ReadAllWithout({__NR_openat, EINVAL, 2, O_DIRECT}, ReadMode::kDirect),
              HasSubstr("lack of O_DIRECT"));
}

TEST_F(FileReaderTest, NamesAFileThatCannotBeOpened) {
  for (const ReadMode mode :
       {ReadMode::kAuto, ReadMode::kDirect, ReadMode::kBuffered, ReadMode::kMapped}) {
    ExpectBadModel({(dir_ / "missing").string(), "No such file"}, [&] {
      OpenReader({path_, dir_ / "missing"}, mode);
    });
  }
}

TEST_F(FileReaderTest, OpensNoFilesAndEmptyOnes) {
  WriteText(dir_ / "empty", "");
  for (const ReadMode mode :
       {ReadMode::kAuto, ReadMode::kDirect, ReadMode::kBuffered, ReadMode::kMapped}) {
    OpenReader({}, mode);
    OpenReader({dir_ / "empty"}, mode);
  }
}

}  // namespace
}  // namespace thimble
