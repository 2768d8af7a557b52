#include "io/mapped_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "io/reader_kinds.h"
#include "support/aligned_memory.h"
#include "support/file_edit.h"
#include "support/sanitizers.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPages = 8;

// A file of which every byte is 'x', and a mapping of all of it.
class MappedFilesTest : public testing::Test {
 protected:
  MappedFilesTest() {
    for (const auto& path : {path_, other_path_}) WriteText(path, std::string(kPages * kPage, 'x'));
    files_.push_back(File::Open(path_));
  }
  ~MappedFilesTest() override {
    for (void* mapping : mappings_) ::munmap(mapping, kPages * kPage);
  }

  const char* Map(const File& file) {
    void* const pages =
        ::mmap(nullptr, kPages * kPage, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    mappings_.push_back(pages);
    return static_cast<const char*>(pages);
  }

  TempDir dir_;
  const std::filesystem::path path_ = dir_ / "file";
  const std::filesystem::path other_path_ = dir_ / "other";
  std::vector<File> files_;
  std::vector<void*> mappings_;
};

using MappedFilesDeathTest = MappedFilesTest;

char Touch(const char* byte) { return *const_cast<const volatile char*>(byte); }

TEST_F(MappedFilesTest, LosesNothingWhileTheFileIsWhole) {
  const MappedFiles watched(files_);
  const char* const bytes = Map(files_[0]);
  EXPECT_EQ(Touch(bytes + 7 * kPage), 'x');
  EXPECT_EQ(watched.Lost(), "");
}

TEST_F(MappedFilesTest, ReadsZerosAndSaysSoOnceTheFileIsShortened) {
  const MappedFiles watched(files_);
  const char* const bytes = Map(files_[0]);
  EXPECT_EQ(Touch(bytes + 7 * kPage), 'x');
  std::filesystem::resize_file(path_, kPage);
  EXPECT_EQ(Touch(bytes + 7 * kPage), 0);
  EXPECT_NE(watched.Lost().find(path_.string()), std::string::npos);
  EXPECT_NE(watched.Lost().find("shortened"), std::string::npos);
  EXPECT_EQ(Touch(bytes), 0);  // the whole mapping
  WriteText(path_, std::string(kPages * kPage, 'x'));
  EXPECT_NE(watched.Lost(), "");
  // Who watches from now on has lost nothing.
  EXPECT_EQ(MappedFiles(files_).Lost(), "");
}

TEST_F(MappedFilesTest, NoticesAShorterFileWhereNothingFaults) {
  const MappedFiles watched(files_);
  std::filesystem::resize_file(path_, kPages * kPage - 1);
  EXPECT_NE(watched.Lost().find(path_.string()), std::string::npos);
}

TEST_F(MappedFilesTest, ManyThreadsMayMeetTheLossAtOnce) {
  const MappedFiles watched(files_);
  for (int round = 0; round < 50; ++round) {
    WriteText(path_, std::string(kPages * kPage, 'x'));
    const char* const bytes = Map(files_[0]);
    std::filesystem::resize_file(path_, 0);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 4; ++i) {
      threads.emplace_back([=] { EXPECT_EQ(Touch(bytes + i * kPage), 0); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_NE(watched.Lost(), "");
}

TEST_F(MappedFilesDeathTest, OtherBusErrorsEndTheProcessAsEver) {
  const MappedFiles watched(files_);
  const File other = File::Open(other_path_);
  const char* const bytes = Map(other);
  std::filesystem::resize_file(other_path_, 0);
  if (kSanitized) {
    EXPECT_DEATH(Touch(bytes), "BUS");  // AddressSanitizer's handler comes next
  } else {
    EXPECT_EXIT(Touch(bytes), testing::KilledBySignal(SIGBUS), "");
  }
  EXPECT_EQ(watched.Lost(), "");
}

// ---- the reader

class MapReaderTest : public MappedFilesTest {
 protected:
  void SetUp() override {
    std::string reason;
    reader_ = OpenKind({.name = "mmap", .mapped = true}, {path_}, &reason);
    ASSERT_NE(reader_, nullptr) << reason;
  }

  void Read(uint64_t offset, size_t bytes, std::byte* out) {
    const ReadRequest read = {.offset = offset, .bytes = bytes, .needed_bytes = bytes, .out = out};
    ReadMonitor monitor;
    ReadBatch batch(monitor);
    reader_->Submit({&read, 1}, ReadPriority::kAhead, batch);
    batch.Await();
  }

  std::unique_ptr<FileReader> reader_;
};

TEST_F(MapReaderTest, LendsThePagesOfTheFileItself) {
  AlignedMemory memory(kPages * kPage);
  Read(0, kPages * kPage, memory.data());
  EXPECT_EQ(memory.data()[5000], std::byte{'x'});
  // A copy would not see this.
  const int descriptor = ::open(path_.c_str(), O_WRONLY);
  ASSERT_EQ(::pwrite(descriptor, "y", 1, 5000), 1);
  ::close(descriptor);
  EXPECT_EQ(memory.data()[5000], std::byte{'y'});
  // Writing changes the memory alone.
  memory.data()[0] = std::byte{'z'};
  EXPECT_EQ(ReadBytes(path_)[0], 'x');
}

TEST_F(MapReaderTest, ReplacesWhatWasThereBefore) {
  WriteText(path_, std::string(kPage, 'a') + std::string(kPage, 'b'));
  SetUp();
  AlignedMemory memory(kPage);
  for (const size_t page : {0, 1, 0, 1}) {
    Read(page * kPage, kPage, memory.data());
    EXPECT_TRUE(std::all_of(memory.data(), memory.data() + kPage,
                            [&](std::byte b) { return b == std::byte(page == 0 ? 'a' : 'b'); }));
  }
}

TEST_F(MapReaderTest, SaysWhatIsLost) {
  AlignedMemory memory(kPages * kPage);
  Read(0, kPages * kPage, memory.data());
  EXPECT_EQ(reader_->Lost(), "");
  std::filesystem::resize_file(path_, 0);
  EXPECT_EQ(memory.data()[0], std::byte{0});
  EXPECT_NE(reader_->Lost().find(path_.string()), std::string::npos);
}

}  // namespace
}  // namespace thimble
