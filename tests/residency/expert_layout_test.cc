#include "residency/expert_layout.h"

#include <gtest/gtest.h>

#include <vector>

#include "residency/checkpoint.h"

namespace thimble {
namespace {

// What holds for every layout: each tensor lies where some read brings it, reads do not overlap in
// the slot, all is aligned.
void ExpectSound(const ExpertExtent& extent, const ExpertLayout& layout) {
  uint64_t next = 0;
  for (size_t i = 0; i < layout.num_reads; ++i) {
    EXPECT_EQ(layout.read_offset[i], next);
    EXPECT_EQ(layout.reads[i].offset % BlockReader::kAlignment, 0U);
    EXPECT_EQ(layout.reads[i].bytes % BlockReader::kAlignment, 0U);
    EXPECT_LE(layout.reads[i].needed_bytes, layout.reads[i].bytes);
    next += layout.reads[i].bytes;
  }
  EXPECT_EQ(layout.bytes, next);
  for (size_t tensor = 0; tensor < kExpertTensors; ++tensor) {
    const ExpertPiece& piece = extent[tensor];
    if (piece.bytes == 0) continue;
    bool brought = false;
    for (size_t i = 0; i < layout.num_reads; ++i) {
      const ReadRequest& read = layout.reads[i];
      if (read.file != piece.file || read.offset > piece.offset ||
          piece.offset + piece.bytes > read.offset + read.needed_bytes) {
        continue;
      }
      brought |= layout.data_offset[tensor] == layout.read_offset[i] + (piece.offset - read.offset);
    }
    EXPECT_TRUE(brought) << "tensor " << tensor;
  }
}

// Tensors one after the other from `offset` on, in the published order.
ExpertExtent Adjacent(uint64_t offset, const std::array<uint64_t, kExpertTensors>& sizes) {
  ExpertExtent extent;
  for (size_t i = 0; i < kExpertTensors; ++i) {
    extent[i] = {.file = 3, .offset = offset, .bytes = sizes[i]};
    offset += sizes[i];
  }
  return extent;
}

TEST(LayOutExpert, ReadsAdjacentTensorsAtOnce) {
  const ExpertExtent extent = Adjacent(5000, {6000, 375, 6000, 375, 6000, 375});
  const ExpertLayout layout = LayOutExpert(extent);
  EXPECT_EQ(layout.num_reads, 1U);
  EXPECT_EQ(layout.reads[0].offset, 4096U);
  EXPECT_EQ(layout.reads[0].needed_bytes, 904U + 19'125U);
  EXPECT_EQ(layout.bytes, 20'480U);
  ExpectSound(extent, layout);
}

TEST(LayOutExpert, NeedsOneBlockMoreThanTheSizeOfAKimiK3ExpertAtMost) {
  const std::array<uint64_t, kExpertTensors> sizes = {5'505'024, 344'064,   5'505'024,
                                                      344'064,   5'505'024, 344'064};
  for (const uint64_t slack : {0, 1, 8, 2048, 4095}) {
    const ExpertExtent extent = Adjacent((uint64_t{1} << 40) + slack, sizes);
    const ExpertLayout layout = LayOutExpert(extent);
    EXPECT_EQ(layout.num_reads, 1U);
    EXPECT_EQ(layout.bytes, 17'547'264U + (slack == 0 ? 0 : BlockReader::kAlignment));
    ExpectSound(extent, layout);
  }
}

TEST(LayOutExpert, FindsAdjacencyInAnyOrder) {
  ExpertExtent extent = Adjacent(8192, {100, 10, 100, 10, 100, 10});
  std::swap(extent[0].offset, extent[4].offset);
  std::swap(extent[1].offset, extent[5].offset);
  const ExpertLayout layout = LayOutExpert(extent);
  EXPECT_EQ(layout.num_reads, 1U);
  ExpectSound(extent, layout);
}

TEST(LayOutExpert, ReadsScatteredTensorsOneByOne) {
  ExpertExtent extent;
  for (size_t i = 0; i < kExpertTensors; ++i) {
    extent[i] = {.file = 0, .offset = 100'000 * (kExpertTensors - i) + i, .bytes = 5000};
  }
  const ExpertLayout layout = LayOutExpert(extent);
  EXPECT_EQ(layout.num_reads, kExpertTensors);
  ExpectSound(extent, layout);
}

TEST(LayOutExpert, DoesNotJoinAcrossFilesOrGaps) {
  ExpertExtent extent = Adjacent(4096, {100, 10, 100, 10, 100, 10});
  for (size_t i = 3; i < kExpertTensors; ++i) extent[i].file = 4;
  EXPECT_EQ(LayOutExpert(extent).num_reads, 2U);
  ExpectSound(extent, LayOutExpert(extent));
  extent[5].offset += 1;
  EXPECT_EQ(LayOutExpert(extent).num_reads, 3U);
  ExpectSound(extent, LayOutExpert(extent));
}

TEST(LayOutExpert, PassesOverAbsentScales) {
  ExpertExtent extent = Adjacent(12'345, {500, 0, 500, 0, 500, 0});
  for (const size_t scales : {1, 3, 5}) extent[scales] = {};
  const ExpertLayout layout = LayOutExpert(extent);
  EXPECT_EQ(layout.num_reads, 1U);
  ExpectSound(extent, layout);
}

TEST(LayOutExpert, IsSoundForEveryExpertOfACheckpoint) {
  for (const Architecture architecture : {Architecture::kKimiK3, Architecture::kKimiLinear}) {
    const Checkpoint& checkpoint = SmallCheckpoint(architecture);
    for (const size_t layer : checkpoint.MoeLayers()) {
      for (size_t expert = 0; expert < checkpoint.config().moe.num_experts; ++expert) {
        const ExpertExtent extent = checkpoint.store().Expert(layer, expert);
        const ExpertLayout layout = LayOutExpert(extent);
        EXPECT_EQ(layout.num_reads, 1U);
        ExpectSound(extent, layout);
      }
    }
  }
}

}  // namespace
}  // namespace thimble
