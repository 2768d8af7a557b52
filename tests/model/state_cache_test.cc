#include "model/state_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "support/expect_error.h"

namespace thimble {
namespace {

// Two KDA layers and one MLA layer, of sizes that are easy to follow:
// - a state of 2 heads of 4 x 4 floats, 128 bytes;
// - a history of 3 projections, 2 tokens, 8 channels: 192 bytes;
// - a latent of 6 elements and an extra part of 2 for each token.
ModelConfig TinyConfig() {
  ModelConfig config;
  config.kda.num_heads = 2;
  config.kda.head_dim = 4;
  config.kda.conv_width = 3;
  config.mla.kv_lora_rank = 6;
  config.mla.extra_dim = 2;
  config.layers = {{MixerKind::kKda, FeedForwardKind::kDense},
                   {MixerKind::kMla, FeedForwardKind::kMoe},
                   {MixerKind::kKda, FeedForwardKind::kMoe}};
  return config;
}

std::vector<size_t> Sizes(StateCache& state, size_t num_tokens) {
  std::vector<size_t> sizes;
  for (const auto& piece : state.Pieces(num_tokens)) sizes.push_back(piece.size());
  return sizes;
}

TEST(StateCacheTest, HasTheSizesOfItsLayers) {
  const ModelConfig config = TinyConfig();
  struct Case {
    LatentFormat format;
    size_t row_bytes;
  };
  for (const Case& one : {Case{LatentFormat::kF32, 32}, Case{LatentFormat::kBF16, 16},
                          Case{LatentFormat::kFP8, 10}}) {
    SCOPED_TRACE(NameOf(one.format));
    MemoryBudget budget(1 << 20);
    StateCache state(config, 20, budget, one.format);
    EXPECT_EQ(state.capacity(), 20U);
    EXPECT_EQ(state.latent_shape().RowBytes(), one.row_bytes);
    EXPECT_EQ(Sizes(state, 20), (std::vector<size_t>{128, 192, 20 * one.row_bytes, 128, 192}));
    EXPECT_EQ(Sizes(state, 3), (std::vector<size_t>{128, 192, 3 * one.row_bytes, 128, 192}));
    EXPECT_EQ(StateCache::PieceBytes(config, 3, one.format), 640 + 3 * one.row_bytes);
    // Each part begins on a cache line.
    const uint64_t latents = (20 * one.row_bytes + 63) / 64 * 64;
    EXPECT_EQ(StateCache::Bytes(config, 20, one.format), 640 + latents);
    EXPECT_EQ(budget.used_bytes(), 640 + latents);
  }
}

TEST(StateCacheTest, IsChargedAndGivesItsMemoryBack) {
  const ModelConfig config = TinyConfig();
  MemoryBudget budget(StateCache::Bytes(config, 20));
  {
    const StateCache state(config, 20, budget);
    EXPECT_EQ(budget.used_bytes(), budget.limit_bytes());
    ExpectError(ErrorCode::kOverBudget, {"session state"},
                [&] { const StateCache second(config, 1, budget); });
  }
  EXPECT_EQ(budget.used_bytes(), 0U);
}

TEST(StateCacheTest, BeginsAsZeros) {
  const ModelConfig config = TinyConfig();
  MemoryBudget budget(1 << 20);
  StateCache state(config, 20, budget);
  EXPECT_EQ(state.num_tokens(), 0U);
  EXPECT_FALSE(state.poisoned());
  const auto pieces = state.Pieces(20);
  ASSERT_EQ(pieces.size(), 5U);
  for (const auto& piece : pieces) {
    EXPECT_TRUE(std::ranges::all_of(piece, [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(StateCacheTest, PartsDoNotOverlapAndAreThoseOfTheLayers) {
  const ModelConfig config = TinyConfig();
  MemoryBudget budget(1 << 20);
  StateCache state(config, 20, budget);
  const auto pieces = state.Pieces(20);
  ASSERT_EQ(pieces.size(), 5U);
  EXPECT_EQ(reinterpret_cast<float*>(pieces[0].data()), state.KdaState(0));
  EXPECT_EQ(reinterpret_cast<float*>(pieces[1].data()), state.KdaHistory(0));
  EXPECT_EQ(reinterpret_cast<uint8_t*>(pieces[2].data()), state.Latents(1));
  EXPECT_EQ(reinterpret_cast<float*>(pieces[3].data()), state.KdaState(2));
  EXPECT_EQ(reinterpret_cast<float*>(pieces[4].data()), state.KdaHistory(2));
  for (size_t i = 0; i < pieces.size(); ++i) std::ranges::fill(pieces[i], std::byte(i + 1));
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_TRUE(std::ranges::all_of(pieces[i], [&](std::byte b) { return b == std::byte(i + 1); }))
        << i;
  }
}

TEST(StateCacheTest, AppendsOrIsPoisoned) {
  const ModelConfig config = TinyConfig();
  MemoryBudget budget(1 << 20);
  StateCache state(config, 20, budget);
  state.BeginAdvance();
  EXPECT_TRUE(state.poisoned());
  EXPECT_EQ(state.num_tokens(), 0U);
  state.CommitAdvance(7);
  EXPECT_FALSE(state.poisoned());
  EXPECT_EQ(state.num_tokens(), 7U);
  state.BeginAdvance();
  state.CommitAdvance(13);
  EXPECT_EQ(state.num_tokens(), 20U);
  state.BeginAdvance();
  EXPECT_TRUE(state.poisoned());
  EXPECT_EQ(state.num_tokens(), 20U);
}

TEST(StateCacheTest, WhatIsRestoredIsNoLongerPoisoned) {
  const ModelConfig config = TinyConfig();
  MemoryBudget budget(1 << 20);
  StateCache state(config, 20, budget);
  state.BeginAdvance();
  state.CommitAdvance(9);
  state.BeginAdvance();
  state.Restore(4);
  EXPECT_FALSE(state.poisoned());
  EXPECT_EQ(state.num_tokens(), 4U);
}

TEST(StateCacheTest, HasNoPiecesBeyondItsCapacity) {
  const ModelConfig config = TinyConfig();
  MemoryBudget budget(1 << 20);
  StateCache state(config, 20, budget);
  ExpectError(ErrorCode::kRuntime, {"num_tokens <= capacity_"}, [&] { state.Pieces(21); });
}

}  // namespace
}  // namespace thimble
