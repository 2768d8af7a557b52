#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "io/block_reader.h"
#include "support/aligned_memory.h"
#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

constexpr size_t kAlign = BlockReader::kAlignment;

class PreadReaderTest : public testing::Test {
 protected:
  // Sizes on, before and after a multiple of the alignment.
  PreadReaderTest() {
    for (const size_t size : {40 * kAlign, 25 * kAlign + 1, 30 * kAlign - 1, size_t{5}}) {
      std::string bytes(size, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random_());
      paths_.push_back(dir_ / ("file" + std::to_string(paths_.size())));
      WriteText(paths_.back(), bytes);
      contents_.push_back(std::move(bytes));
    }
  }

  size_t Below(size_t limit) { return random_() % limit; }

  // A read of up to eight blocks somewhere in some file, past its end as alignment has it.
  ReadRequest RandomRead() {
    ReadRequest read;
    read.file = static_cast<uint32_t>(Below(paths_.size()));
    const size_t size = contents_[read.file].size();
    read.offset = Below((size + kAlign - 1) / kAlign) * kAlign;
    const size_t wanted = 1 + Below(8 * kAlign);
    read.needed_bytes = std::min<size_t>(wanted, size - read.offset);
    read.bytes = (read.needed_bytes + kAlign - 1) / kAlign * kAlign;
    return read;
  }

  void ExpectHolds(const ReadRequest& read) {
    EXPECT_EQ(std::memcmp(read.out, contents_[read.file].data() + read.offset, read.needed_bytes),
              0)
        << read.needed_bytes << " bytes at " << read.offset << " of file " << read.file;
  }

  TempDir dir_;
  std::mt19937_64 random_{7};
  std::vector<std::filesystem::path> paths_;
  std::vector<std::string> contents_;
  ReadMonitor monitor_;
};

TEST_F(PreadReaderTest, ReadsWhatTheFilesHold) {
  for (const size_t threads : {1, 2, 5}) {
    const auto reader = OpenPreadReader(paths_, threads);
    for (int round = 0; round < 20; ++round) {
      std::vector<ReadRequest> reads(1 + Below(12));
      std::deque<AlignedMemory> memory;
      for (ReadRequest& read : reads) {
        read = RandomRead();
        read.out = memory.emplace_back(read.bytes).data();
      }
      ReadBatch batch(monitor_);
      reader->Submit(reads, round % 2 == 0 ? ReadPriority::kDemand : ReadPriority::kAhead, batch);
      batch.Await();
      for (const ReadRequest& read : reads) ExpectHolds(read);
    }
  }
}

TEST_F(PreadReaderTest, ServesManyBatchesAtOnce) {
  const auto reader = OpenPreadReader(paths_, 3);
  std::deque<ReadBatch> batches;
  std::deque<AlignedMemory> memory;
  std::vector<std::vector<ReadRequest>> reads(30);
  for (auto& requests : reads) {
    for (int i = 0; i < 5; ++i) {
      requests.push_back(RandomRead());
      requests.back().out = memory.emplace_back(requests.back().bytes).data();
    }
    batches.emplace_back(monitor_);
    reader->Submit(requests, batches.size() % 3 == 0 ? ReadPriority::kDemand : ReadPriority::kAhead,
                   batches.back());
  }
  for (size_t i = batches.size(); i-- > 0;) {
    batches[i].Await();
    for (const ReadRequest& read : reads[i]) ExpectHolds(read);
  }
}

TEST_F(PreadReaderTest, MayPassTheEndButWritesNothingThere) {
  const auto reader = OpenPreadReader(paths_, 1);
  AlignedMemory memory(2 * kAlign);
  const ReadRequest read = {
      .file = 3, .offset = 0, .bytes = kAlign, .needed_bytes = 5, .out = memory.data()};
  ReadBatch batch(monitor_);
  reader->Submit({&read, 1}, ReadPriority::kDemand, batch);
  batch.Await();
  ExpectHolds(read);
  EXPECT_TRUE(std::all_of(memory.data() + 5, memory.data() + 2 * kAlign,
                          [](std::byte b) { return b == std::byte{0xcd}; }));
}

TEST_F(PreadReaderTest, FailsWhereNeededBytesAreMissingAndNamesThem) {
  const auto reader = OpenPreadReader(paths_, 1);
  AlignedMemory memory(kAlign);
  const ReadRequest read = {
      .file = 1, .offset = 25 * kAlign, .bytes = kAlign, .needed_bytes = 2, .out = memory.data()};
  ReadBatch batch(monitor_);
  reader->Submit({&read, 1}, ReadPriority::kDemand, batch);
  ExpectError(ErrorCode::kRuntime,
              {paths_[1].string(), "ends at byte " + std::to_string(25 * kAlign + 1), "1 bytes"},
              [&] { batch.Await(); });
}

TEST_F(PreadReaderTest, FailsWhereAFileWasShortenedAndServesTheOthers) {
  const auto reader = OpenPreadReader(paths_, 2);
  Truncate(paths_[0], 5 * kAlign);
  std::deque<AlignedMemory> memory;
  std::vector<ReadRequest> reads;
  for (const uint64_t block : {0, 34, 36}) {
    reads.push_back({.file = 0,
                     .offset = block * kAlign,
                     .bytes = 2 * kAlign,
                     .needed_bytes = 2 * kAlign,
                     .out = memory.emplace_back(2 * kAlign).data()});
  }
  ReadBatch batch(monitor_);
  reader->Submit(reads, ReadPriority::kDemand, batch);
  ExpectError(ErrorCode::kRuntime, {paths_[0].string(), "shortened"}, [&] { batch.Await(); });
  ExpectHolds(reads[0]);

  reader->Submit({reads.data(), 1}, ReadPriority::kDemand, batch);
  batch.Await();
  ExpectHolds(reads[0]);
}

TEST_F(PreadReaderTest, CompletesWhatIsInFlightWhenItGoes) {
  std::deque<AlignedMemory> memory;
  std::vector<ReadRequest> reads;
  for (int i = 0; i < 100; ++i) {
    reads.push_back(RandomRead());
    reads.back().out = memory.emplace_back(reads.back().bytes).data();
  }
  ReadBatch batch(monitor_);
  {
    const auto reader = OpenPreadReader(paths_, 2);
    reader->Submit(reads, ReadPriority::kAhead, batch);
  }
  EXPECT_TRUE(batch.done());
  batch.Await();
  for (const ReadRequest& read : reads) ExpectHolds(read);
}

TEST_F(PreadReaderTest, NamesAFileThatCannotBeOpened) {
  paths_.push_back(dir_ / "missing");
  ExpectBadModel({(dir_ / "missing").string()}, [&] { OpenPreadReader(paths_, 2); });
}

TEST_F(PreadReaderTest, AcceptsNoRequests) {
  const auto reader = OpenPreadReader({}, 1);
  ReadBatch batch(monitor_);
  reader->Submit({}, ReadPriority::kDemand, batch);
  batch.Await();
}

}  // namespace
}  // namespace thimble
