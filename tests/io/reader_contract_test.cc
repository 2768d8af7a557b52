// What every reader promises, whatever it is made of.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/byte_size.h"
#include "io/reader_kinds.h"
#include "support/aligned_memory.h"
#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

constexpr size_t kAligned = BlockReader::kAlignment;

class ReaderContractTest : public testing::TestWithParam<ReaderKind> {
 protected:
  // Sizes on, before and after a multiple of the alignment.
  ReaderContractTest() {
    for (const size_t size : {40 * kAligned, 25 * kAligned + 1, 30 * kAligned - 1, size_t{5}}) {
      std::string bytes(size, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random_());
      paths_.push_back(dir_ / ("file" + std::to_string(paths_.size())));
      WriteText(paths_.back(), bytes);
      contents_.push_back(std::move(bytes));
    }
  }

  void SetUp() override { Reopen(); }
  void Reopen() {
    std::string reason;
    reader_ = OpenKind(GetParam(), paths_, &reason);
    if (reader_ == nullptr) GTEST_SKIP() << reason;
  }

  size_t Below(size_t limit) { return random_() % limit; }

  // A read of up to eight blocks somewhere in some file, past its end as alignment has it.
  ReadRequest RandomRead() {
    ReadRequest read;
    read.file = static_cast<uint32_t>(Below(paths_.size()));
    const size_t size = contents_[read.file].size();
    read.offset = Below((size + kAligned - 1) / kAligned) * kAligned;
    const size_t wanted = 1 + Below(8 * kAligned);
    read.needed_bytes = std::min<size_t>(wanted, size - read.offset);
    read.bytes = (read.needed_bytes + kAligned - 1) / kAligned * kAligned;
    return read;
  }

  // With memory for it, one page more than it may write.
  ReadRequest WithMemory(ReadRequest read) {
    read.out = memory_.emplace_back(read.bytes + kAligned).data();
    return read;
  }

  void ExpectHolds(const ReadRequest& read) {
    EXPECT_EQ(std::memcmp(read.out, contents_[read.file].data() + read.offset, read.needed_bytes),
              0)
        << read.needed_bytes << " bytes at " << read.offset << " of file " << read.file;
    EXPECT_TRUE(std::all_of(read.out + read.bytes, read.out + read.bytes + kAligned,
                            [](std::byte b) { return b == std::byte{0xcd}; }))
        << "written past " << read.bytes << " bytes";
  }

  TempDir dir_;
  std::mt19937_64 random_{7};
  std::vector<std::filesystem::path> paths_;
  std::vector<std::string> contents_;
  std::deque<AlignedMemory> memory_;
  ReadMonitor monitor_;
  std::unique_ptr<FileReader> reader_;
};

TEST_P(ReaderContractTest, ReadsWhatTheFilesHold) {
  uint64_t needed = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<ReadRequest> reads(1 + Below(12));
    for (ReadRequest& read : reads) {
      read = WithMemory(RandomRead());
      needed += read.needed_bytes;
    }
    ReadBatch batch(monitor_);
    reader_->Submit(reads, round % 2 == 0 ? ReadPriority::kDemand : ReadPriority::kAhead, batch);
    batch.Await();
    for (const ReadRequest& read : reads) ExpectHolds(read);
  }
  EXPECT_GE(reader_->read_bytes(), needed);
}

TEST_P(ReaderContractTest, ServesManyBatchesAtOnce) {
  std::deque<ReadBatch> batches;
  std::vector<std::vector<ReadRequest>> reads(100);
  for (auto& requests : reads) {
    for (int i = 0; i < 5; ++i) requests.push_back(WithMemory(RandomRead()));
    batches.emplace_back(monitor_);
    reader_->Submit(requests,
                    batches.size() % 3 == 0 ? ReadPriority::kDemand : ReadPriority::kAhead,
                    batches.back());
  }
  for (size_t i = batches.size(); i-- > 0;) {
    batches[i].Await();
    for (const ReadRequest& read : reads[i]) ExpectHolds(read);
  }
}

TEST_P(ReaderContractTest, TakesBackWhatItHasNotBegun) {
  // A reader may have begun them all before it is asked, but not every time.
  constexpr int kMostRounds = 5000;
  size_t all_withdrawn = 0;
  for (int round = 0; round < 20 || (all_withdrawn == 0 && round < kMostRounds); ++round) {
    std::vector<ReadRequest> reads;
    for (int i = 0; i < 50; ++i) reads.push_back(WithMemory(RandomRead()));
    ReadBatch likely(monitor_);
    reader_->Submit(reads, ReadPriority::kLikely, likely);
    const size_t withdrawn = reader_->Withdraw(likely);
    ASSERT_LE(withdrawn, reads.size());
    all_withdrawn += withdrawn;
    likely.Await();
    // In order of arrival: the last are those that were taken back.
    reads.resize(reads.size() - withdrawn);
    for (const ReadRequest& read : reads) ExpectHolds(read);
    memory_.clear();
  }
  EXPECT_GT(all_withdrawn, 0U);
}

TEST_P(ReaderContractTest, GoesOnAfterPauses) {
  for (int round = 0; round < 200; ++round) {
    const ReadRequest read = WithMemory(RandomRead());
    ReadBatch batch(monitor_);
    reader_->Submit({&read, 1}, ReadPriority::kDemand, batch);
    batch.Await();
    ExpectHolds(read);
  }
}

TEST_P(ReaderContractTest, MayPassTheEnd) {
  const ReadRequest read = WithMemory({.file = 3, .bytes = 2 * kAligned, .needed_bytes = 5});
  ReadBatch batch(monitor_);
  reader_->Submit({&read, 1}, ReadPriority::kDemand, batch);
  batch.Await();
  ExpectHolds(read);
}

TEST_P(ReaderContractTest, CompletesEmptyRequests) {
  const ReadRequest nothing = WithMemory({.bytes = kAligned});
  const ReadRequest read = WithMemory({.bytes = kAligned, .needed_bytes = kAligned});
  const ReadRequest both[] = {nothing, read, nothing};
  ReadBatch batch(monitor_);
  reader_->Submit({}, ReadPriority::kDemand, batch);
  batch.Await();
  reader_->Submit({&nothing, 1}, ReadPriority::kDemand, batch);
  batch.Await();
  reader_->Submit(both, ReadPriority::kAhead, batch);
  batch.Await();
  ExpectHolds(read);
}

TEST_P(ReaderContractTest, FailsWhereNeededBytesAreMissingAndNamesThem) {
  const ReadRequest read =
      WithMemory({.file = 1, .offset = 25 * kAligned, .bytes = kAligned, .needed_bytes = 3});
  ReadBatch batch(monitor_);
  reader_->Submit({&read, 1}, ReadPriority::kDemand, batch);
  ExpectError(ErrorCode::kRuntime,
              {paths_[1].string(), "ends at byte " + std::to_string(25 * kAligned + 1), "2 bytes"},
              [&] { batch.Await(); });
}

TEST_P(ReaderContractTest, FailsWhereAFileWasShortenedAndServesTheOthers) {
  Truncate(paths_[0], 5 * kAligned + 100);
  std::vector<ReadRequest> reads;
  for (const uint64_t block : {0, 34, 36}) {
    reads.push_back(WithMemory({.file = 0,
                                .offset = block * kAligned,
                                .bytes = 2 * kAligned,
                                .needed_bytes = 2 * kAligned}));
  }
  reads.push_back(
      WithMemory({.file = 2, .bytes = 30 * kAligned, .needed_bytes = 30 * kAligned - 1}));
  ReadBatch batch(monitor_);
  reader_->Submit(reads, ReadPriority::kDemand, batch);
  ExpectError(
      ErrorCode::kRuntime,
      {paths_[0].string(), "ends at byte " + std::to_string(35 * kAligned - 100), "shortened"},
      [&] { batch.Await(); });
  ExpectHolds(reads[0]);
  ExpectHolds(reads[3]);

  reader_->Submit({reads.data(), 1}, ReadPriority::kDemand, batch);
  batch.Await();
  ExpectHolds(reads[0]);
}

TEST_P(ReaderContractTest, CompletesWhatIsInFlightWhenItGoes) {
  for (int round = 0; round < 5; ++round) {
    std::vector<ReadRequest> reads;
    for (int i = 0; i < 100; ++i) reads.push_back(WithMemory(RandomRead()));
    ReadBatch batch(monitor_);
    reader_->Submit(reads, ReadPriority::kAhead, batch);
    reader_.reset();
    EXPECT_TRUE(batch.done());
    batch.Await();
    for (const ReadRequest& read : reads) ExpectHolds(read);
    Reopen();
  }
}

TEST_P(ReaderContractTest, ReadsBeyondTwoAndFourGiB) {
  const std::string mark = "beyond";
  const std::vector<uint64_t> places = {2 * kGiB - kAligned, 2 * kGiB, 4 * kGiB,
                                        4 * kGiB + kAligned};
  paths_.push_back(dir_ / "sparse");
  std::ofstream file(paths_.back(), std::ios::binary);
  for (const uint64_t place : places) {
    file.seekp(static_cast<std::streamoff>(place));
    file << mark << place;
  }
  ASSERT_TRUE(file.flush());
  Reopen();
  for (const uint64_t place : places) {
    const std::string text = mark + std::to_string(place);
    const ReadRequest read = WithMemory(
        {.file = 4, .offset = place, .bytes = 2 * kAligned, .needed_bytes = text.size()});
    ReadBatch batch(monitor_);
    reader_->Submit({&read, 1}, ReadPriority::kDemand, batch);
    batch.Await();
    EXPECT_EQ(std::memcmp(read.out, text.data(), text.size()), 0) << place;
  }
  const ReadRequest far =
      WithMemory({.file = 4, .offset = 5 * kGiB, .bytes = kAligned, .needed_bytes = kAligned});
  ReadBatch batch(monitor_);
  reader_->Submit({&far, 1}, ReadPriority::kDemand, batch);
  ExpectError(ErrorCode::kRuntime, {paths_[4].string(), "ends at byte 42949"},
              [&] { batch.Await(); });
}

TEST_P(ReaderContractTest, SaysWhatItIs) {
  EXPECT_NE(reader_->Describe().find(FormatShape(GetParam().shape)), std::string::npos);
  EXPECT_EQ(reader_->read_bytes(), 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, ReaderContractTest,
    testing::Values(ReaderKind{"Uring", true, true, {}},
                    ReaderKind{"UringOfPages", true, true, {1, kAligned}},
                    ReaderKind{"UringOfFewPages", true, true, {3, 3 * kAligned}},
                    ReaderKind{"PreadDirect", false, true, {4, kMiB}},
                    ReaderKind{"PreadDirectOfPages", false, true, {2, kAligned}},
                    ReaderKind{"PreadBuffered", false, false, {4, kMiB}},
                    ReaderKind{"PreadBufferedOfPages", false, false, {1, kAligned}},
                    ReaderKind{"Mapped", false, false, {4, kMiB}, true},
                    ReaderKind{"MappedOfPages", false, false, {2, kAligned}, true}),
    [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace thimble
