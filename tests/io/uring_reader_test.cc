// What happens where the kernel takes io_uring away while it is in use.

#include "io/uring_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/byte_size.h"
#include "base/error.h"
#include "io/reader_kinds.h"
#include "support/aligned_memory.h"
#include "support/file_edit.h"
#include "support/sanitizers.h"
#include "support/syscall_filter.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

constexpr size_t kFileBytes = 4 * kMiB;
constexpr size_t kReadBytes = 128 * kKiB;
constexpr int kNotAllowed = 77;

class UringReaderTest : public testing::Test {
 protected:
  UringReaderTest() {
    std::string content(kFileBytes, '\0');
    for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i / 7 + i / 4096);
    WriteText(path_, content);
    content_ = content;
  }

  void SetUp() override {
    std::string reason;
    reader_ = OpenKind({"", true, true, {8, 32 * kKiB}}, {path_}, &reason);
    if (reader_ == nullptr) GTEST_SKIP() << reason;
    reader_.reset();
  }

  void Open() {
    std::string reason;
    reader_ = OpenKind({"", true, true, {8, 32 * kKiB}}, {path_}, &reason);
  }

  void SubmitAll(ReadBatch& batch) {
    std::memset(memory_.data(), 0, kFileBytes);
    for (size_t at = 0; at < kFileBytes; at += kReadBytes) {
      const ReadRequest read = {.offset = at,
                                .bytes = kReadBytes,
                                .needed_bytes = kReadBytes,
                                .out = memory_.data() + at};
      reader_->Submit({&read, 1}, ReadPriority::kDemand, batch);
    }
  }
  bool IsThere() { return std::memcmp(memory_.data(), content_.data(), kFileBytes) == 0; }

  // In a process of its own: reads, of which the kernel has begun some when it starts to refuse,
  // and reads after that.
  [[noreturn]] void ReadOnAfter(const RefusedCall& call) {
    Open();
    ReadMonitor monitor;
    ReadBatch batch(monitor);
    SubmitAll(batch);
    batch.Await();
    bool is_right = IsThere() && reader_->Describe().starts_with("io_uring");
    SubmitAll(batch);
    if (!RefuseFromNowOn(call, SECCOMP_FILTER_FLAG_TSYNC)) std::_Exit(kNotAllowed);
    for (int again = 0; again < 2; ++again) {
      batch.Await();
      is_right = is_right && IsThere();
      SubmitAll(batch);
    }
    batch.Await();
    is_right = is_right && IsThere() && reader_->Lost().empty() &&
               reader_->read_bytes() == 4 * kFileBytes &&
               reader_->Describe().starts_with("pread, direct, since io_uring failed");
    reader_.reset();  // ends
    std::_Exit(is_right ? 0 : 1);
  }

  TempDir dir_;
  const std::filesystem::path path_ = dir_ / "file";
  std::string content_;
  AlignedMemory memory_{kFileBytes};
  std::unique_ptr<FileReader> reader_;
};

TEST_F(UringReaderTest, OtherReadsTakeOverWhereTheRingFailsLater) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own threads do not outlive a fork";
  for (const uint32_t error : {EIO, EPERM, EBADF, EINVAL, ENOSYS}) {
    const auto ends_well = [](int status) {
      return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == kNotAllowed);
    };
    EXPECT_EXIT(ReadOnAfter({__NR_io_uring_enter, error}), ends_well, "") << std::strerror(error);
  }
}

// A ring that could be set up and tried, and fails with its first real use.
TEST_F(UringReaderTest, OtherReadsTakeOverWhereTheRingFailsAtOnce) {
  std::string description;
  std::string lost;
  bool is_there = false;
  const bool allowed = RunWithout({__NR_io_uring_enter, EPERM, 2, 1}, [&] {  // that waits
    Open();
    ReadMonitor monitor;
    ReadBatch batch(monitor);
    SubmitAll(batch);
    batch.Await();
    is_there = IsThere();
    description = reader_->Describe();
    lost = reader_->Lost();
    reader_.reset();
  });
  if (!allowed) GTEST_SKIP() << "this process may not filter system calls";
  EXPECT_TRUE(is_there);
  EXPECT_THAT(description, testing::HasSubstr("Operation not permitted"));
  EXPECT_EQ(lost, "");
}

// The read that takes over fails like any other.
TEST_F(UringReaderTest, AFileThatIsShortenedIsNamedAfterTheTakeover) {
  std::string message;
  const bool allowed = RunWithout({__NR_io_uring_enter, EIO, 2, 1}, [&] {
    Open();
    std::filesystem::resize_file(path_, kFileBytes / 2);
    ReadMonitor monitor;
    ReadBatch batch(monitor);
    SubmitAll(batch);
    try {
      batch.Await();
    } catch (const Error& error) {
      message = error.what();
    }
    reader_.reset();
  });
  if (!allowed) GTEST_SKIP() << "this process may not filter system calls";
  EXPECT_THAT(message, testing::AllOf(testing::HasSubstr(path_.string()),
                                      testing::HasSubstr(std::to_string(kFileBytes / 2))));
}

}  // namespace
}  // namespace thimble
