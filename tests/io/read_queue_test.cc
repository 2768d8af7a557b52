#include "io/read_queue.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/byte_size.h"
#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

constexpr size_t kAlign = BlockReader::kAlignment;

// Nothing is read here: an address alone.
std::byte* Address(size_t value) { return reinterpret_cast<std::byte*>(value); }

class ReadQueueTest : public testing::Test {
 protected:
  bool Push(uint64_t offset, size_t needed_bytes, ReadPriority priority) {
    const ReadRequest request = {.file = 1,
                                 .offset = offset,
                                 .bytes = (needed_bytes + kAlign - 1) / kAlign * kAlign,
                                 .needed_bytes = needed_bytes,
                                 .out = Address(kAlign)};
    return queue_.Push({&request, 1}, priority, batch_);
  }
  void Drain() {
    while (auto piece = queue_.TryPop()) queue_.Finish(*piece, {});
  }

  ReadMonitor monitor_;
  ReadBatch batch_{monitor_};
  ReadQueue queue_{4 * kAlign};
};

TEST_F(ReadQueueTest, CutsRequestsIntoPieces) {
  Push(8 * kAlign, 9 * kAlign + 7, ReadPriority::kAhead);
  const size_t bytes[] = {4 * kAlign, 4 * kAlign, 2 * kAlign};
  const size_t needed[] = {4 * kAlign, 4 * kAlign, kAlign + 7};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(batch_.done());
    const auto piece = queue_.TryPop();
    ASSERT_TRUE(piece);
    EXPECT_EQ(piece->file, 1U);
    EXPECT_EQ(piece->offset, (8 + 4 * i) * kAlign);
    EXPECT_EQ(piece->out, Address(kAlign + 4 * i * kAlign));
    EXPECT_EQ(piece->bytes, bytes[i]);
    EXPECT_EQ(piece->needed_bytes, needed[i]);
    queue_.Finish(*piece, {});
  }
  EXPECT_TRUE(batch_.done());
  EXPECT_FALSE(queue_.TryPop());
}

TEST_F(ReadQueueTest, LeavesOutPagesThatNobodyNeeds) {
  const ReadRequest request = {
      .bytes = 100 * kAlign, .needed_bytes = kAlign + 1, .out = Address(kAlign)};
  queue_.Push({&request, 1}, ReadPriority::kDemand, batch_);
  const auto piece = queue_.TryPop();
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece->bytes, 2 * kAlign);
  EXPECT_FALSE(queue_.TryPop());
  queue_.Finish(*piece, {});
  EXPECT_TRUE(batch_.done());
}

TEST_F(ReadQueueTest, CutsRequestsBeyondFourGiB) {
  ReadQueue queue(kMiB);
  const ReadRequest request = {
      .offset = 3 * kGiB, .bytes = 5 * kGiB, .needed_bytes = 5 * kGiB - 1, .out = Address(kAlign)};
  queue.Push({&request, 1}, ReadPriority::kAhead, batch_);
  uint64_t next = 3 * kGiB;
  while (auto piece = queue.TryPop()) {
    EXPECT_EQ(piece->offset, next);
    next += piece->bytes;
    queue.Finish(*piece, {});
  }
  EXPECT_EQ(next, 8 * kGiB);
  EXPECT_TRUE(batch_.done());
}

TEST_F(ReadQueueTest, HandsOutWhatIsDemandedBeforeWhatIsAhead) {
  Push(0, 8 * kAlign, ReadPriority::kAhead);
  Push(100 * kAlign, kAlign, ReadPriority::kAhead);
  const auto first = queue_.TryPop();
  EXPECT_EQ(first->offset, 0U);
  // In the middle of a request, too.
  Push(200 * kAlign, 8 * kAlign, ReadPriority::kDemand);
  Push(300 * kAlign, kAlign, ReadPriority::kDemand);
  queue_.Finish(*first, {});
  for (const uint64_t block : {200, 204, 300, 4, 100}) {
    const auto piece = queue_.TryPop();
    ASSERT_TRUE(piece);
    EXPECT_EQ(piece->offset, block * kAlign);
    queue_.Finish(*piece, {});
  }
  EXPECT_TRUE(batch_.done());
}

TEST_F(ReadQueueTest, HandsOutWhatIsLikelyLast) {
  Push(0, kAlign, ReadPriority::kLikely);
  Push(100 * kAlign, kAlign, ReadPriority::kAhead);
  Push(200 * kAlign, kAlign, ReadPriority::kDemand);
  for (const uint64_t block : {200, 100, 0}) {
    const auto piece = queue_.TryPop();
    ASSERT_TRUE(piece);
    EXPECT_EQ(piece->offset, block * kAlign);
    queue_.Finish(*piece, {});
  }
}

TEST_F(ReadQueueTest, TakesBackWhatIsLikelyAndNotBegun) {
  Push(0, 8 * kAlign, ReadPriority::kLikely);
  Push(100 * kAlign, kAlign, ReadPriority::kLikely);
  Push(200 * kAlign, kAlign, ReadPriority::kLikely);
  const auto begun = queue_.TryPop();
  ReadBatch other(monitor_);
  EXPECT_EQ(queue_.Withdraw(other), 0U);
  EXPECT_EQ(queue_.Withdraw(batch_), 2U);
  EXPECT_EQ(queue_.Withdraw(batch_), 0U);
  EXPECT_FALSE(batch_.done());
  const auto rest = queue_.TryPop();
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->offset, 4 * kAlign);
  EXPECT_FALSE(queue_.TryPop());
  queue_.Finish(*begun, {});
  queue_.Finish(*rest, {});
  EXPECT_TRUE(batch_.done());
  Push(0, kAlign, ReadPriority::kAhead);
  Push(0, kAlign, ReadPriority::kDemand);
  EXPECT_EQ(queue_.Withdraw(batch_), 0U);
  Drain();
}

TEST_F(ReadQueueTest, CompletesARequestOnceWithItsFirstError) {
  Push(0, 12 * kAlign, ReadPriority::kAhead);
  const auto a = queue_.TryPop();
  const auto b = queue_.TryPop();
  queue_.Finish(*b, "first");
  queue_.Finish(*a, "second");
  EXPECT_FALSE(batch_.done());
  Drain();
  EXPECT_EQ(ExpectError(ErrorCode::kRuntime, {}, [&] { batch_.Await(); }), "first");
  // What took its place in the queue knows nothing of it.
  Push(0, kAlign, ReadPriority::kAhead);
  Drain();
  batch_.Await();
}

TEST_F(ReadQueueTest, SaysWhenItsReaderLookedInVain) {
  EXPECT_FALSE(Push(0, kAlign, ReadPriority::kAhead));
  Drain();
  EXPECT_FALSE(Push(0, 0, ReadPriority::kAhead));  // nothing to be done
  EXPECT_TRUE(Push(0, kAlign, ReadPriority::kAhead));
  EXPECT_FALSE(Push(0, kAlign, ReadPriority::kAhead));
  queue_.Finish(*queue_.TryPop(), {});
  EXPECT_FALSE(Push(0, kAlign, ReadPriority::kDemand));
  Drain();
}

TEST_F(ReadQueueTest, GivesOutTheRestAfterClosing) {
  Push(0, 8 * kAlign, ReadPriority::kAhead);
  queue_.Close();
  EXPECT_TRUE(queue_.closed());
  for (int i = 0; i < 2; ++i) queue_.Finish(*queue_.Pop(), {});
  EXPECT_FALSE(queue_.Pop());
  EXPECT_TRUE(batch_.done());
}

TEST_F(ReadQueueTest, WakesThoseWhoWait) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([this] {
      while (auto piece = queue_.Pop()) queue_.Finish(*piece, {});
    });
  }
  for (int i = 0; i < 200; ++i) {
    Push(0, 10 * kAlign, i % 2 == 0 ? ReadPriority::kAhead : ReadPriority::kDemand);
    if (i % 10 == 0) batch_.Await();
  }
  queue_.Close();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(batch_.done());
}

// ---- what becomes of a piece

class AdvanceTest : public testing::Test {
 protected:
  AdvanceTest() {
    WriteText(path_, std::string(3 * kAlign + 100, 'x'));
    piece_.offset = kAlign;
    piece_.bytes = 4 * kAlign;
    Need(2 * kAlign + 100);
  }
  void Need(size_t bytes) {
    piece_.needed_bytes = bytes;
    job_.request = {.offset = kAlign, .bytes = 4 * kAlign, .needed_bytes = bytes};
  }
  PieceState Answer(int64_t answer) { return Advance(file_ ? *file_ : Open(), answer, &piece_); }
  const File& Open() { return file_.emplace(File::Open(path_)); }

  TempDir dir_;
  const std::filesystem::path path_ = dir_ / "file";
  std::optional<File> file_;
  ReadJob job_;
  ReadPiece piece_ = {.job = &job_};
};

TEST_F(AdvanceTest, EndsWithTheLastNeededByte) {
  const PieceState state = Answer(2 * kAlign + 100);
  EXPECT_TRUE(state.over);
  EXPECT_EQ(state.error, "");
}

TEST_F(AdvanceTest, GoesOnAfterAShortReadAtAnAlignedPlace) {
  EXPECT_FALSE(Answer(kAlign + 512).over);
  EXPECT_EQ(piece_.done_bytes, kAlign);
  EXPECT_FALSE(Answer(kAlign).over);
  EXPECT_EQ(piece_.done_bytes, 2 * kAlign);
  EXPECT_TRUE(Answer(100).over);
}

TEST_F(AdvanceTest, RepeatsWhatASignalOrAFullQueueInterrupted) {
  for (const int64_t answer : {-EINTR, -EAGAIN}) {
    EXPECT_FALSE(Answer(answer).over);
    EXPECT_EQ(piece_.done_bytes, 0U);
  }
}

TEST_F(AdvanceTest, ReportsTheDrivesErrorAndItsPlace) {
  Answer(kAlign);
  const PieceState state = Answer(-EIO);
  EXPECT_TRUE(state.over);
  EXPECT_EQ(state.error, "reading " + path_.string() + " at byte " + std::to_string(2 * kAlign) +
                             " failed: Input/output error; check the drive and its cable, then run "
                             "again");
}

TEST_F(AdvanceTest, ReportsTheEndOfAShortFile) {
  Need(3 * kAlign);
  EXPECT_FALSE(Answer(2 * kAlign + 100).over);
  const PieceState state = Answer(100);
  EXPECT_TRUE(state.over);
  EXPECT_NE(state.error.find("ends at byte " + std::to_string(3 * kAlign + 100) + ", expected " +
                             std::to_string(kAlign - 100) + " bytes more"),
            std::string::npos)
      << state.error;
}

TEST_F(AdvanceTest, TakesAReadOfNothingWithinTheFileForAFailure) {
  const PieceState state = Answer(0);
  EXPECT_TRUE(state.over);
  EXPECT_NE(state.error.find("at byte 4096 failed: Input/output error"), std::string::npos)
      << state.error;
}

}  // namespace
}  // namespace thimble
