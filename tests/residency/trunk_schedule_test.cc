#include "residency/trunk_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/byte_size.h"
#include "base/checked_math.h"
#include "residency/checkpoint.h"
#include "residency/weight_layout.h"
#include "support/expect_error.h"

namespace thimble {
namespace {

class TrunkScheduleTest : public testing::TestWithParam<Architecture> {
 protected:
  uint64_t MinBlock() const {
    return TrunkSchedule::MinBlockBytes(checkpoint_.config(), checkpoint_.store());
  }
  TrunkSchedule Build(uint64_t block_bytes) const {
    return TrunkSchedule::Build(checkpoint_.config(), checkpoint_.store(), block_bytes);
  }
  std::vector<uint64_t> BlockSizes() const {
    const uint64_t least = MinBlock();
    return {0,         1,         least,  least + 1, least + 1000, least + BlockReader::kAlignment,
            2 * least, 3 * least, 50'000, 64 * kKiB, kMiB,         64 * kMiB};
  }

  static std::span<const TrunkPiece> PiecesOf(const TrunkSchedule& schedule,
                                              const TrunkBlock& block) {
    return std::span(schedule.pieces).subspan(block.first_piece, block.num_pieces);
  }
  static std::span<const TrunkRead> ReadsOf(const TrunkSchedule& schedule,
                                            const TrunkBlock& block) {
    return std::span(schedule.reads).subspan(block.first_read, block.num_reads);
  }

  const Checkpoint& checkpoint_ = SmallCheckpoint(GetParam());
};

TEST_P(TrunkScheduleTest, HoldsEveryTensorOnceInOrder) {
  for (const uint64_t block_bytes : BlockSizes()) {
    const TrunkSchedule schedule = Build(block_bytes);
    auto piece = schedule.pieces.begin();
    for (const TrunkTensor& tensor : checkpoint_.Trunk(true)) {
      for (size_t row = 0; row < tensor.extent.rows; row += (piece++)->rows.rows) {
        ASSERT_NE(piece, schedule.pieces.end());
        ASSERT_EQ(piece->tensor, tensor.address);
        ASSERT_EQ(piece->first_row, row);
        EXPECT_GT(piece->rows.rows, 0U);
        EXPECT_EQ(piece->rows.rows % tensor.granule, 0U);
        EXPECT_LE(row + piece->rows.rows, tensor.extent.rows);
        EXPECT_EQ(piece->rows.cols, tensor.extent.cols);
        EXPECT_EQ(piece->rows.format, TrunkFormat(tensor.extent));
        EXPECT_EQ(piece->rows.data, nullptr);
      }
    }
    EXPECT_EQ(piece, schedule.pieces.end());
  }
}

TEST_P(TrunkScheduleTest, ReadsWhatEachPieceNeeds) {
  const std::vector<TrunkTensor> trunk = checkpoint_.Trunk(true);
  for (const uint64_t block_bytes : BlockSizes()) {
    const TrunkSchedule schedule = Build(block_bytes);
    for (const TrunkBlock& block : schedule.blocks) {
      for (const TrunkPiece& piece : PiecesOf(schedule, block)) {
        const auto tensor = std::ranges::find(trunk, piece.tensor, &TrunkTensor::address);
        const TensorExtent& extent = tensor->extent;
        const uint64_t first = extent.offset + piece.first_row * extent.RowBytes();
        const uint64_t end = first + piece.rows.rows * extent.RowBytes();
        // One read brings all of it, to where the piece says.
        EXPECT_EQ(std::ranges::count_if(ReadsOf(schedule, block),
                                        [&](const TrunkRead& read) {
                                          const ReadRequest& request = read.request;
                                          return request.file == extent.file &&
                                                 request.offset <= first &&
                                                 end <= request.offset + request.needed_bytes &&
                                                 read.block_offset + (first - request.offset) ==
                                                     piece.data_offset;
                                        }),
                  1);
      }
    }
  }
}

TEST_P(TrunkScheduleTest, ReadsNothingElseAndNothingTwice) {
  const std::vector<TrunkTensor> trunk = checkpoint_.Trunk(true);
  for (const uint64_t block_bytes : BlockSizes()) {
    const TrunkSchedule schedule = Build(block_bytes);
    for (const TrunkBlock& block : schedule.blocks) {
      std::set<std::pair<uint32_t, uint64_t>> pages;
      for (const TrunkPiece& piece : PiecesOf(schedule, block)) {
        const auto tensor = std::ranges::find(trunk, piece.tensor, &TrunkTensor::address);
        const TensorExtent& extent = tensor->extent;
        const uint64_t first = extent.offset + piece.first_row * extent.RowBytes();
        const uint64_t end = first + piece.rows.rows * extent.RowBytes();
        for (uint64_t page = first / BlockReader::kAlignment; page * BlockReader::kAlignment < end;
             ++page) {
          pages.insert({extent.file, page});
        }
      }
      EXPECT_EQ(block.bytes, pages.size() * BlockReader::kAlignment);
      for (const TrunkRead& read : ReadsOf(schedule, block)) {
        const uint64_t first = read.request.offset / BlockReader::kAlignment;
        const uint64_t count = read.request.bytes / BlockReader::kAlignment;
        for (uint64_t i = 0; i < count; ++i) {
          EXPECT_EQ(pages.erase({read.request.file, first + i}), 1U);
        }
        // Else it would be one read with its neighbour.
        EXPECT_FALSE(pages.contains({read.request.file, first + count}));
      }
      EXPECT_TRUE(pages.empty());
    }
  }
}

TEST_P(TrunkScheduleTest, FillsBlocksWithinTheirSize) {
  for (const uint64_t block_bytes : BlockSizes()) {
    SCOPED_TRACE(block_bytes);
    const TrunkSchedule schedule = Build(block_bytes);
    size_t next_piece = 0;
    size_t next_read = 0;
    uint64_t all_bytes = 0;
    uint64_t most = 0;
    for (const TrunkBlock& block : schedule.blocks) {
      EXPECT_EQ(block.first_piece, next_piece);
      EXPECT_GT(block.num_pieces, 0U);
      EXPECT_EQ(block.first_read, next_read);
      uint64_t bytes = 0;
      for (const TrunkRead& read : ReadsOf(schedule, block)) {
        EXPECT_EQ(read.block_offset, bytes);
        EXPECT_EQ(read.request.offset % BlockReader::kAlignment, 0U);
        EXPECT_EQ(read.request.bytes,
                  RoundUp<uint64_t>(read.request.needed_bytes, BlockReader::kAlignment));
        EXPECT_EQ(read.request.out, nullptr);
        bytes += read.request.bytes;
      }
      uint64_t data_bytes = 0;
      for (const TrunkPiece& piece : PiecesOf(schedule, block)) {
        data_bytes += DataOf(piece.rows).size();
      }
      next_piece += block.num_pieces;
      next_read += block.num_reads;
      EXPECT_EQ(block.bytes, bytes);
      EXPECT_EQ(block.read_bytes, data_bytes);
      EXPECT_LE(bytes, std::max(block_bytes, MinBlock()));
      all_bytes += bytes;
      most = std::max(most, bytes);
    }
    EXPECT_EQ(next_piece, schedule.pieces.size());
    EXPECT_EQ(next_read, schedule.reads.size());
    EXPECT_EQ(schedule.bytes, all_bytes);
    EXPECT_EQ(schedule.max_block_bytes, most);
  }
}

TEST_P(TrunkScheduleTest, TakesNoMoreMemoryThanWasForeseen) {
  const ModelConfig& config = checkpoint_.config();
  const std::vector<TrunkEntry> trunk = ListTrunk(config, checkpoint_.store());
  uint64_t tensor_bytes = 0;
  for (const TrunkEntry& entry : trunk) tensor_bytes += entry.extent.Bytes();
  for (uint64_t block = TrunkSchedule::MinBlockBytes(trunk); block < 4 * kMiB;
       block += BlockReader::kAlignment) {
    const TrunkSchedule schedule = TrunkSchedule::Build(trunk, block);
    ASSERT_LE(schedule.TableBytes(),
              TrunkSchedule::MostTableBytes(trunk.size(), tensor_bytes, block))
        << block;
    if (schedule.blocks.size() < 4) break;
  }
}

TEST_P(TrunkScheduleTest, StartsABlockForTheHead) {
  for (const uint64_t block_bytes : BlockSizes()) {
    const TrunkSchedule schedule = Build(block_bytes);
    ASSERT_LT(schedule.head_block, schedule.blocks.size());
    const size_t first = schedule.blocks[schedule.head_block].first_piece;
    for (size_t i = 0; i < schedule.pieces.size(); ++i) {
      EXPECT_EQ(schedule.pieces[i].tensor.layer == kNoLayer, i >= first);
    }
    EXPECT_EQ(schedule.pieces.back().tensor.role, TensorRole::kHead);
  }
}

// A block ends only where not one granule more would fit, were it read by itself.
TEST_P(TrunkScheduleTest, FillsBlocksAsFarAsTheyGo) {
  const std::vector<TrunkTensor> trunk = checkpoint_.Trunk(true);
  for (const uint64_t block_bytes : BlockSizes()) {
    const uint64_t size =
        std::max(block_bytes, MinBlock()) / BlockReader::kAlignment * BlockReader::kAlignment;
    const TrunkSchedule schedule = Build(block_bytes);
    for (size_t i = 1; i < schedule.blocks.size(); ++i) {
      if (i == schedule.head_block) continue;
      const TrunkPiece& next = schedule.pieces[schedule.blocks[i].first_piece];
      const auto tensor = std::ranges::find(trunk, next.tensor, &TrunkTensor::address);
      const TensorExtent& extent = tensor->extent;
      const uint64_t slack =
          (extent.offset + next.first_row * extent.RowBytes()) % BlockReader::kAlignment;
      EXPECT_GT(schedule.blocks[i - 1].bytes + slack + tensor->granule * extent.RowBytes(), size);
    }
  }
}

// The layers of a small model fit into one block each way; what lies in a row is one read.
TEST_P(TrunkScheduleTest, JoinsWhatLiesInARow) {
  const TrunkSchedule schedule = Build(64 * kMiB);
  ASSERT_EQ(schedule.head_block, 1U);
  ASSERT_EQ(schedule.blocks.size(), 2U);
  std::vector<std::pair<uint32_t, uint64_t>> ends;  // of the trunk's tensors in the layers
  std::vector<std::pair<uint32_t, uint64_t>> begins;
  for (const TrunkTensor& tensor : checkpoint_.Trunk(false)) {
    begins.emplace_back(tensor.extent.file, tensor.extent.offset / BlockReader::kAlignment);
    ends.emplace_back(tensor.extent.file, RoundUp(tensor.extent.offset + tensor.extent.Bytes(),
                                                  BlockReader::kAlignment) /
                                              BlockReader::kAlignment);
  }
  std::ranges::sort(begins);
  std::ranges::sort(ends);
  size_t runs = 1;
  for (size_t i = 1; i < begins.size(); ++i) runs += begins[i] > ends[i - 1] ? 1 : 0;
  EXPECT_EQ(schedule.blocks[0].num_reads, runs);
  EXPECT_LT(schedule.blocks[0].num_reads, schedule.blocks[0].num_pieces);
}

INSTANTIATE_TEST_SUITE_P(Models, TrunkScheduleTest,
                         testing::Values(Architecture::kKimiK3, Architecture::kKimiLinear),
                         [](const auto& model) { return ArchitectureName(model.param); });

// Heads whose keys and values are wider than any small tensor, so that they set the least block.
TEST(TrunkScheduleGranule, KeepsAHeadsKeysAndValuesTogether) {
  CheckpointDims dims;
  dims.mla_heads = 3;
  dims.kv_lora = 160;
  dims.nope = 24;
  dims.value = 40;
  const Checkpoint checkpoint(CheckpointBuilder::KimiK3(dims));
  const uint64_t least = TrunkSchedule::MinBlockBytes(checkpoint.config(), checkpoint.store());
  EXPECT_EQ(least, RoundUp<uint64_t>((24 + 40) * 160 * 2 + BlockReader::kAlignment,
                                     BlockReader::kAlignment));
  for (uint64_t block_bytes = least; block_bytes < 4 * least;
       block_bytes += BlockReader::kAlignment) {
    size_t heads = 0;
    for (const TrunkPiece& piece :
         TrunkSchedule::Build(checkpoint.config(), checkpoint.store(), block_bytes).pieces) {
      if (piece.tensor.role != TensorRole::kKvB) continue;
      EXPECT_EQ(piece.first_row % 64, 0U);
      EXPECT_EQ(piece.rows.rows % 64, 0U);
      heads += piece.rows.rows / 64;
    }
    EXPECT_EQ(heads, 3U * 2U);
  }
}

TEST(AlignedRead, CoversTheRangeWithTheFewestBlocks) {
  const ReadRequest inside = AlignedRead(7, 5000, 100);
  EXPECT_EQ(inside.file, 7U);
  EXPECT_EQ(inside.offset, 4096U);
  EXPECT_EQ(inside.needed_bytes, 1004U);
  EXPECT_EQ(inside.bytes, 4096U);
  EXPECT_EQ(inside.out, nullptr);
  const ReadRequest exact = AlignedRead(0, 8192, 4096);
  EXPECT_EQ(exact.offset, 8192U);
  EXPECT_EQ(exact.bytes, 4096U);
  const ReadRequest crossing = AlignedRead(0, 8191, 2);
  EXPECT_EQ(crossing.offset, 4096U);
  EXPECT_EQ(crossing.bytes, 8192U);
}

TEST(TrunkFormat, RefusesBytes) {
  EXPECT_EQ(TrunkFormat({.dtype = DType::kBF16}), WeightFormat::kBF16);
  EXPECT_EQ(TrunkFormat({.dtype = DType::kF32}), WeightFormat::kF32);
  EXPECT_EQ(TrunkFormat({.dtype = DType::kQ8}), WeightFormat::kQ8);
  ExpectError(ErrorCode::kRuntime, {"internal error"}, [] { TrunkFormat({.dtype = DType::kU8}); });
}

}  // namespace
}  // namespace thimble
