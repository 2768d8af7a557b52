#include "residency/trunk_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "base/byte_size.h"
#include "io/file_reader.h"
#include "residency/checkpoint.h"
#include "support/expect_error.h"
#include "support/fault_reader.h"

namespace thimble {
namespace {

// Parts of the trunk's memory that are pinned. kAllNoRing: everything, and no ring.
enum class Pinned : uint8_t { kNone, kTenth, kHalf, kAllWithRing, kAllNoRing };

// A stream over a small checkpoint, with its reader, budget and monitor.
class Stream {
 public:
  Stream(const Checkpoint& checkpoint, BlockReader& reader, size_t ring_slots, Pinned pinned,
         uint64_t block_bytes)
      : checkpoint_(checkpoint),
        schedule_(TrunkSchedule::Build(checkpoint.config(), checkpoint.store(), block_bytes)),
        counter_(reader) {
    memory_.ring_slots = pinned == Pinned::kAllNoRing ? 0 : ring_slots;
    memory_.pinned_bytes = PinnedBytes(pinned);
    stream_.emplace(checkpoint.config(), checkpoint.store(), schedule_, memory_, BestKernels(),
                    counter_, monitor_, budget_);
  }

  // Acquires the first `num_acquires` pieces of a sweep, and compares each with the file when it
  // comes and again when the next has come. Returns how many were acquired.
  size_t Sweep(bool with_head, size_t num_acquires = SIZE_MAX) {
    size_t acquired = 0;
    Lease<WeightMatrix> before;
    std::string_view before_bytes;
    stream_->BeginSweep(with_head);
    for (const TrunkTensor& tensor : checkpoint_.Trunk(with_head)) {
      for (size_t row = 0; row < tensor.extent.rows;) {
        if (acquired == num_acquires) return acquired;
        Lease<WeightMatrix> rows = stream_->Acquire(tensor.address, row);
        ++acquired;
        const std::string_view expected =
            checkpoint_.Bytes(tensor.extent)
                .substr(row * tensor.extent.RowBytes(), rows->rows * tensor.extent.RowBytes());
        CheckShape(tensor, row, *rows);
        EXPECT_TRUE(DataOf(*rows) == expected)
            << "layer " << tensor.address.layer << " row " << row;
        EXPECT_TRUE(DataOf(*before) == before_bytes);
        row += rows->rows;
        before = std::move(rows);
        before_bytes = expected;
      }
    }
    return acquired;
  }

  TrunkStream& operator*() { return *stream_; }
  TrunkStream* operator->() { return &*stream_; }
  void Destroy() { stream_.reset(); }
  const TrunkSchedule& schedule() const { return schedule_; }
  const TrunkMemory& memory() const { return memory_; }
  CountingReader& counter() { return counter_; }
  const MemoryBudget& budget() const { return budget_; }

  // Bytes of the tensors in blocks [first, last) that pass `wanted`.
  template <typename F>
  uint64_t DataBytes(size_t first, size_t last, const F& wanted) const {
    uint64_t bytes = 0;
    for (size_t block = first; block < last; ++block) {
      if (wanted(block)) bytes += schedule_.blocks[block].read_bytes;
    }
    return bytes;
  }
  // Reads so far of a block.
  size_t ReadsOf(size_t block) const {
    return counter_.CountOf(schedule_.reads[schedule_.blocks[block].first_read].request);
  }

 private:
  uint64_t PinnedBytes(Pinned pinned) const {
    switch (pinned) {
      case Pinned::kNone:
        return 0;
      case Pinned::kTenth:
        return schedule_.bytes / 10;
      case Pinned::kHalf:
        return schedule_.bytes / 2;
      case Pinned::kAllWithRing:
      case Pinned::kAllNoRing:
        return schedule_.bytes;
    }
    return 0;
  }

  static void CheckShape(const TrunkTensor& tensor, size_t row, const WeightMatrix& rows) {
    EXPECT_EQ(rows.format, TrunkFormat(tensor.extent));
    EXPECT_EQ(rows.cols, tensor.extent.cols);
    EXPECT_EQ(rows.scales, nullptr);
    ASSERT_GT(rows.rows, 0U);
    ASSERT_LE(row + rows.rows, tensor.extent.rows);
    EXPECT_EQ(rows.rows % tensor.granule, 0U);
  }

  const Checkpoint& checkpoint_;
  const TrunkSchedule schedule_;
  TrunkMemory memory_;
  CountingReader counter_;
  ReadMonitor monitor_;
  MemoryBudget budget_{kGiB};
  std::optional<TrunkStream> stream_;
};

// All readers in one stack: failing on demand, shuffled if asked for, over dirty memory.
class Readers {
 public:
  Readers(const Checkpoint& checkpoint, bool shuffled)
      : instant(checkpoint.paths()), dirty(instant), failing(dirty, checkpoint.paths()) {
    if (shuffled) shuffled_.emplace(failing, 11);
  }
  BlockReader& top() {
    if (shuffled_) return *shuffled_;
    return failing;
  }

  InstantReader instant;
  DirtyReader dirty;
  FailingReader failing;

 private:
  std::optional<ShuffledReader> shuffled_;
};

// ---- every shape of memory

using Shape = std::tuple<Architecture, Pinned, bool>;  // bool: shuffled completions

class TrunkStreamTest : public testing::TestWithParam<Shape> {
 protected:
  // Calls visit(stream, readers) for each ring and block size.
  template <typename F>
  void ForEachStream(const F& visit) {
    for (const size_t ring_slots : {2, 3, 4, 5}) {
      if (pinned_ == Pinned::kAllNoRing && ring_slots > 2) continue;
      if (shuffled_ && ring_slots % 2 == 1) continue;
      for (const uint64_t block_bytes : {uint64_t{0}, 20 * kKiB, 64 * kKiB, kMiB}) {
        if (shuffled_ && block_bytes != 64 * kKiB) continue;
        SCOPED_TRACE(testing::Message() << ring_slots << " slots of " << block_bytes);
        Readers readers(checkpoint_, shuffled_);
        Stream stream(checkpoint_, readers.top(), ring_slots, pinned_, block_bytes);
        visit(stream, readers);
        if (HasFatalFailure()) return;
      }
    }
  }

  const Checkpoint& checkpoint_ = SmallCheckpoint(std::get<0>(GetParam()));
  const Pinned pinned_ = std::get<1>(GetParam());
  const bool shuffled_ = std::get<2>(GetParam());
};

TEST_P(TrunkStreamTest, GivesTheBytesOfTheFileInAnySequenceOfSweeps) {
  ForEachStream([](Stream& stream, Readers&) {
    for (const bool with_head : {false, false, true, false, true, true, false, true}) {
      stream.Sweep(with_head);
    }
  });
}

TEST_P(TrunkStreamTest, StartsAfreshAfterASweepThatBrokeOff) {
  ForEachStream([](Stream& stream, Readers&) {
    const size_t pieces = stream.Sweep(true);
    for (const size_t acquires : {size_t{0}, size_t{1}, pieces / 3, pieces / 2, pieces - 1}) {
      EXPECT_EQ(stream.Sweep(true, acquires), acquires);
      stream.Sweep(acquires % 2 == 0);
      stream.Sweep(false, acquires / 2);
      stream.Sweep(true, acquires);
    }
    EXPECT_EQ(stream.Sweep(true), pieces);
  });
}

TEST_P(TrunkStreamTest, ReadsPinnedBlocksOnceAndTheOthersInEachSweep) {
  ForEachStream([&](Stream& stream, Readers&) {
    const size_t num_blocks = stream.schedule().blocks.size();
    const size_t head = stream.schedule().head_block;
    stream.Sweep(true);
    stream.Sweep(true);
    stream.counter().Clear();
    const uint64_t before = stream->read_bytes();
    stream.Sweep(true);
    const uint64_t streamed = stream->read_bytes() - before;
    const auto is_pinned = [&](size_t block) { return stream.ReadsOf(block) == 0; };
    // With a head the sweep reads on into the next one's layers, and so began with them.
    EXPECT_EQ(streamed, stream.DataBytes(0, num_blocks, [&](size_t b) { return !is_pinned(b); }));
    uint64_t pinned_memory = 0;
    for (size_t block = 0; block < num_blocks; ++block) {
      EXPECT_LE(stream.ReadsOf(block), 1U);
      if (is_pinned(block)) pinned_memory += stream.schedule().blocks[block].bytes;
    }
    EXPECT_LE(pinned_memory, stream.memory().pinned_bytes);
    EXPECT_EQ(pinned_memory == 0, pinned_ == Pinned::kNone);
    EXPECT_EQ(streamed == 0, pinned_ >= Pinned::kAllWithRing);

    stream.Sweep(false);
    const uint64_t between = stream->read_bytes();
    stream.Sweep(false);
    EXPECT_EQ(stream->read_bytes() - between,
              stream.DataBytes(0, head, [&](size_t b) { return !is_pinned(b); }));
  });
}

TEST_P(TrunkStreamTest, ChargesWhatItHoldsAndReturnsIt) {
  ForEachStream([&](Stream& stream, Readers&) {
    const TrunkSchedule& schedule = stream.schedule();
    auto ledger = stream.budget().Ledger();
    EXPECT_EQ(ledger["embedding rows"], TrunkStream::EmbeddingBytes(checkpoint_.config()));
    EXPECT_EQ(ledger["pinned trunk"], stream.memory().pinned_bytes);
    EXPECT_EQ(ledger["trunk ring"], stream.memory().ring_slots * schedule.max_block_bytes);
    EXPECT_EQ(ledger["trunk schedule"], schedule.TableBytes());
    stream.Sweep(true);
    stream.Destroy();
    EXPECT_EQ(stream.budget().used_bytes(), 0U);
  });
}

TEST_P(TrunkStreamTest, PreloadReadsThePinnedBlocksAndNoSweepDoesAgain) {
  ForEachStream([&](Stream& stream, Readers&) {
    uint64_t told = 0;
    stream->Preload([&](uint64_t bytes) { told += bytes; });
    EXPECT_EQ(told, stream->PinnedTensorBytes());
    EXPECT_EQ(told, stream->read_bytes());
    if (stream.memory().pinned_bytes == stream.schedule().bytes) {
      const size_t num_reads = stream.counter().num_reads();
      stream.Sweep(true);
      EXPECT_EQ(stream.counter().num_reads(), num_reads);
    }
    for (const bool with_head : {true, false, true}) stream.Sweep(with_head);
  });
}

TEST_P(TrunkStreamTest, FinishesItsReadsWhenItGoes) {
  ForEachStream([](Stream& stream, Readers&) {
    stream->BeginSweep(true);
    stream.Destroy();
    EXPECT_EQ(stream.budget().used_bytes(), 0U);
  });
  ForEachStream([](Stream& stream, Readers&) {
    stream.Sweep(false, 7);
    stream.Destroy();
  });
}

// Wherever the one failure of a sweep falls, that sweep reports it, and those after it are whole.
// Nobody does where it fell on what was read ahead for the next sweep, which reads it again.
TEST_P(TrunkStreamTest, RecoversFromAnyFailedRead) {
  for (const size_t ring_slots : {2, 4}) {
    size_t reads = 1;
    size_t unreported = 0;
    for (size_t fails_at = 0; fails_at < reads; fails_at += 1 + fails_at / (shuffled_ ? 1 : 8)) {
      SCOPED_TRACE(testing::Message() << ring_slots << " slots, read " << fails_at << " fails");
      Readers readers(checkpoint_, shuffled_);
      Stream stream(checkpoint_, readers.top(), ring_slots, pinned_, 20 * kKiB);
      readers.failing.FailAfter(fails_at);
      size_t errors = 0;
      for (int sweep = 0; sweep < 4; ++sweep) {
        try {
          stream.Sweep(true);
        } catch (const Error& error) {
          ++errors;
          EXPECT_EQ(sweep, 0);
          EXPECT_EQ(error.code(), ErrorCode::kRuntime);
          EXPECT_THAT(error.what(), testing::HasSubstr(".safetensors"));
          EXPECT_THAT(error.what(), testing::HasSubstr("injected"));
        }
        if (sweep == 0) reads = stream.counter().num_reads();
      }
      EXPECT_EQ(readers.failing.num_failed(), 1U);
      EXPECT_LE(errors, 1U);
      EXPECT_TRUE(errors == 1 || fails_at > 0);
      unreported += errors == 0 ? 1 : 0;
      ASSERT_FALSE(HasFailure());
    }
    EXPECT_LE(unreported, ring_slots) << "only so many blocks are read ahead";
  }
}

TEST_P(TrunkStreamTest, RecoversOnceTheDriveDoes) {
  ForEachStream([](Stream& stream, Readers& readers) {
    readers.failing.FailAll(true);
    for (int i = 0; i < 3; ++i) {
      ExpectError(ErrorCode::kRuntime, {"injected"}, [&] { stream.Sweep(true); });
    }
    readers.failing.FailAll(false);  // while reads are in flight: some may fail yet
    stream.Sweep(true);
    stream.Sweep(false);
  });
}

std::string ShapeName(const testing::TestParamInfo<Shape>& info) {
  const char* const kPinned[] = {"PinsNothing", "PinsATenth", "PinsHalf", "PinsAll",
                                 "PinsAllWithoutRing"};
  return ArchitectureName(std::get<0>(info.param)) +
         kPinned[static_cast<size_t>(std::get<1>(info.param))] +
         (std::get<2>(info.param) ? "Shuffled" : "Instant");
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, TrunkStreamTest,
    testing::Combine(testing::Values(Architecture::kKimiK3, Architecture::kKimiLinear),
                     testing::Values(Pinned::kNone, Pinned::kTenth, Pinned::kHalf,
                                     Pinned::kAllWithRing, Pinned::kAllNoRing),
                     testing::Bool()),
    ShapeName);

// ---- one stream

class OneTrunkStreamTest : public testing::Test {
 protected:
  const Checkpoint& checkpoint_ = SmallCheckpoint(Architecture::kKimiK3);
  Readers readers_{checkpoint_, false};
};

TEST_F(OneTrunkStreamTest, SpreadsPinnedBlocksOverTheSweep) {
  Stream stream(checkpoint_, readers_.top(), 2, Pinned::kHalf, 0);
  stream.Sweep(true);
  stream.Sweep(true);
  stream.counter().Clear();
  stream.Sweep(true);
  size_t run = 0;
  size_t longest = 0;
  for (size_t block = 0; block < stream.schedule().blocks.size(); ++block) {
    run = stream.ReadsOf(block) > 0 ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  EXPECT_LE(longest, 3U);
}

TEST_F(OneTrunkStreamTest, ReadsWithTheReadersOfTheEngine) {
  for (const ReadMode mode : {ReadMode::kAuto, ReadMode::kDirect, ReadMode::kMapped}) {
    const auto reader = OpenReader(checkpoint_.paths(), mode);
    for (const Pinned pinned : {Pinned::kNone, Pinned::kHalf, Pinned::kAllNoRing}) {
      Stream stream(checkpoint_, *reader, 3, pinned, 20 * kKiB);
      for (const bool with_head : {true, false, true}) stream.Sweep(with_head);
    }
  }
}

TEST_F(OneTrunkStreamTest, CatchesATensorOutOfOrder) {
  Stream stream(checkpoint_, readers_.top(), 2, Pinned::kNone, 0);
  const std::vector<TrunkTensor> trunk = checkpoint_.Trunk(false);
  ExpectError(ErrorCode::kRuntime, {"internal error"},
              [&] { stream->Acquire(trunk[0].address, 0); });
  stream->BeginSweep(false);
  ExpectError(ErrorCode::kRuntime, {"internal error"},
              [&] { stream->Acquire(trunk[1].address, 0); });
  stream->BeginSweep(false);
  ExpectError(ErrorCode::kRuntime, {"internal error"},
              [&] { stream->Acquire(trunk[0].address, 1); });
  stream.Sweep(false);
  ExpectError(ErrorCode::kRuntime, {"internal error"}, [&] {
    stream->Acquire({kNoLayer, TensorRole::kHead}, 0);
  });
}

TEST_F(OneTrunkStreamTest, CatchesALeaseThatOutlivesItsSweep) {
  Stream stream(checkpoint_, readers_.top(), 2, Pinned::kNone, kMiB);
  stream->BeginSweep(false);
  Lease<WeightMatrix> last;
  for (const TrunkTensor& tensor : checkpoint_.Trunk(false)) {
    for (size_t row = 0; row < tensor.extent.rows; row += last->rows) {
      last = stream->Acquire(tensor.address, row);
    }
  }
  ExpectError(ErrorCode::kRuntime, {"internal error"}, [&] { stream->BeginSweep(false); });
  last = Lease<WeightMatrix>();
  stream.Sweep(true);
}

// ---- embeddings

float AsFloat(const TensorExtent& extent, std::string_view row, size_t i) {
  uint32_t bits = 0;
  if (extent.dtype == DType::kF32) {
    std::memcpy(&bits, row.data() + i * 4, 4);
  } else {
    uint16_t half = 0;
    std::memcpy(&half, row.data() + i * 2, 2);
    bits = uint32_t{half} << 16;
  }
  return std::bit_cast<float>(bits);
}

void ExpectEmbeddings(const Checkpoint& checkpoint, TrunkStream& stream,
                      const std::vector<uint32_t>& tokens) {
  const TensorExtent& table = checkpoint.store().Global(TensorRole::kEmbedding);
  const size_t hidden = checkpoint.config().hidden_size;
  std::vector<float> rows(tokens.size() * hidden + 1, -7.0F);
  const uint64_t before = stream.read_bytes();
  stream.ReadEmbeddings(tokens, rows.data());
  EXPECT_EQ(stream.read_bytes() - before, tokens.size() * table.RowBytes());
  for (size_t t = 0; t < tokens.size(); ++t) {
    const std::string_view row =
        checkpoint.Bytes(table).substr(tokens[t] * table.RowBytes(), table.RowBytes());
    for (size_t i = 0; i < hidden; ++i) {
      ASSERT_EQ(rows[t * hidden + i], AsFloat(table, row, i)) << "token " << tokens[t];
    }
  }
  EXPECT_EQ(rows.back(), -7.0F);
}

std::vector<uint32_t> SomeTokens(const Checkpoint& checkpoint, size_t count) {
  std::mt19937_64 random(count);
  std::vector<uint32_t> tokens(count);
  const size_t vocab = checkpoint.config().vocab_size;
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random() % vocab);
  if (count > 0) tokens.back() = static_cast<uint32_t>(vocab - 1);
  return tokens;
}

TEST(TrunkStreamEmbeddings, EqualTheTablesRows) {
  for (const Architecture architecture : {Architecture::kKimiK3, Architecture::kKimiLinear}) {
    const Checkpoint& checkpoint = SmallCheckpoint(architecture);
    for (const bool shuffled : {false, true}) {
      Readers readers(checkpoint, shuffled);
      Stream stream(checkpoint, readers.top(), 2, Pinned::kTenth, 0);
      for (const size_t count : {0, 1, 2, 31, 32, 33, 64, 100}) {
        ExpectEmbeddings(checkpoint, *stream, SomeTokens(checkpoint, count));
      }
    }
  }
}

TEST(TrunkStreamEmbeddings, AreReadAtAnyPointOfASweep) {
  const Checkpoint& checkpoint = SmallCheckpoint(Architecture::kKimiK3);
  Readers readers(checkpoint, true);
  Stream stream(checkpoint, readers.top(), 3, Pinned::kHalf, 0);
  stream->BeginSweep(true);
  ExpectEmbeddings(checkpoint, *stream, SomeTokens(checkpoint, 40));
  stream.Sweep(true, 20);
  ExpectEmbeddings(checkpoint, *stream, SomeTokens(checkpoint, 3));
  stream.Sweep(true);
  ExpectEmbeddings(checkpoint, *stream, SomeTokens(checkpoint, 5));
  stream.Sweep(false);
}

TEST(TrunkStreamEmbeddings, OfAnF32TableAreTakenAsTheyAre) {
  CheckpointBuilder builder = CheckpointBuilder::KimiLinear();
  CheckpointBuilder::Tensor& table = builder.FindTensor("model.embed_tokens.weight");
  std::string wide;
  for (size_t i = 0; i < table.bytes.size(); i += 2) {
    wide += std::string(1, static_cast<char>(i)) + '\x42' + table.bytes.substr(i, 2);
  }
  table.bytes = wide;
  table.dtype = "F32";
  const Checkpoint checkpoint(builder);
  Readers readers(checkpoint, false);
  Stream stream(checkpoint, readers.top(), 2, Pinned::kNone, 0);
  ExpectEmbeddings(checkpoint, *stream, SomeTokens(checkpoint, 70));
  stream.Sweep(true);
}

TEST(TrunkStreamEmbeddings, NameTheFileThatFailsAndWorkAgain) {
  const Checkpoint& checkpoint = SmallCheckpoint(Architecture::kKimiK3);
  Readers readers(checkpoint, false);
  Stream stream(checkpoint, readers.top(), 2, Pinned::kNone, 0);
  const std::vector<uint32_t> tokens = SomeTokens(checkpoint, 50);
  std::vector<float> rows(tokens.size() * checkpoint.config().hidden_size);
  for (const size_t fails_at : {0, 31, 32, 49}) {
    readers.failing.FailAfter(fails_at);
    const uint32_t file = checkpoint.store().Global(TensorRole::kEmbedding).file;
    ExpectError(ErrorCode::kRuntime, {checkpoint.paths()[file].string(), "injected"},
                [&] { stream->ReadEmbeddings(tokens, rows.data()); });
    ExpectEmbeddings(checkpoint, *stream, tokens);
  }
}

}  // namespace
}  // namespace thimble
