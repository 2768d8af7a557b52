#include "pack/synth.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/engine.h"
#include "format/container.h"
#include "pack/verify.h"
#include "pack/weight_generator.h"
#include "support/directory_bytes.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

// The parts of Kimi K3 in a few MB.
SynthOptions Small() {
  SynthOptions synth;
  synth.architecture = "k3-small";
  synth.shape.layers = 9;
  synth.distinct_layers = 1;
  synth.distinct_experts = 2;
  synth.seed = 3;
  return synth;
}

TEST(SynthTest, SameSeedSameBytes) {
  TempDir dir;
  SynthOptions synth = Small();
  SynthesizeModel(synth, dir / "a", {}, nullptr);
  WriteOptions small_steps;
  small_steps.chunk_bytes = 3 * 4096;
  SynthesizeModel(synth, dir / "b", small_steps, nullptr);
  EXPECT_TRUE(DirectoryBytes(dir / "a") == DirectoryBytes(dir / "b"));
  EXPECT_EQ(VerifyModel(dir / "a", nullptr).num_damaged, 0U);
  synth.seed = 4;
  SynthesizeModel(synth, dir / "c", {}, nullptr);
  EXPECT_FALSE(ReadBytes(dir / "a" / "core.bin") == ReadBytes(dir / "c" / "core.bin"));
  ExpectError(ErrorCode::kUsage, {"another model"},
              [&] { SynthesizeModel(synth, dir / "a", {}, nullptr); });
}

// A coded tensor may end at an odd byte: what is written at a time then ends within an element of
// the next one. With this seed it does.
TEST(SynthTest, PiecesMayCutElements) {
  TempDir dir;
  SynthOptions synth = Small();
  synth.shape.layers = 4;
  synth.seed = 2;
  SynthesizeModel(synth, dir / "a", {}, nullptr);
  WriteOptions pages;
  pages.chunk_bytes = 4096;
  SynthesizeModel(synth, dir / "b", pages, nullptr);
  EXPECT_TRUE(DirectoryBytes(dir / "a") == DirectoryBytes(dir / "b"));
}

TEST(SynthTest, ExpertsAloneCanBeShared) {
  TempDir dir;
  SynthOptions synth = Small();
  synth.distinct_layers.reset();
  SynthesizeModel(synth, dir.path(), {}, nullptr);
  const ModelConfig config = ReadModelConfig(dir.path());
  EXPECT_TRUE(OpenContainer(dir.path(), config).manifest.shared_extents);
  const TensorStore store = TensorStore::Open(dir.path(), config);
  EXPECT_EQ(store.Expert(1, 0)[0].offset, store.Expert(1, 2)[0].offset);
  EXPECT_NE(store.Expert(1, 0)[0].file, store.Expert(2, 0)[0].file);
}

TEST(SynthTest, LayersAndExpertsAreSharedAsAskedAndTheManifestSaysSo) {
  TempDir dir;
  SynthesizeModel(Small(), dir.path(), {}, nullptr);
  const ModelConfig config = ReadModelConfig(dir.path());
  const Container container = OpenContainer(dir.path(), config);
  EXPECT_TRUE(container.manifest.shared_extents);
  EXPECT_EQ(container.paths.size(), 3U);  // the core, experts of a KDA layer and of an MLA layer
  const TensorStore store = TensorStore::Open(dir.path(), config);
  const auto query = [&](size_t layer) { return store.Layer(layer, TensorRole::kKey).offset; };
  EXPECT_EQ(query(1), query(2));
  EXPECT_NE(query(0), query(1));  // the dense layer is of another kind
  EXPECT_EQ(store.Expert(1, 0)[0].offset, store.Expert(1, 2)[0].offset);
  EXPECT_NE(store.Expert(1, 0)[0].offset, store.Expert(1, 1)[0].offset);
  EXPECT_NE(store.Expert(1, 0)[0].file, store.Expert(3, 0)[0].file);
}

void ExpectFiniteLogits(const SynthOptions& synth) {
  TempDir dir;
  SynthesizeModel(synth, dir.path(), {}, nullptr);
  const ModelDirectory model = ModelDirectory::Open(dir.path());
  EngineOptions options;
  options.context = 8;
  const auto engine = Engine::Open(model, options);
  Session session(*engine);
  const std::vector<TokenId> tokens = {1, 2, 3, 2, 1};
  session.Append(tokens, nullptr);
  float most = 0;
  for (const float logit : session.logits()) {
    ASSERT_TRUE(std::isfinite(logit));
    most = std::max(most, std::abs(logit));
  }
  EXPECT_GT(most, 1.0F);
  EXPECT_LT(most, 100.0F);
}

TEST(SynthTest, ActivationsStayFiniteThroughManyLayers) {
  SynthOptions synth = Small();
  synth.shape.layers = 93;
  ExpectFiniteLogits(synth);
}

TEST(SynthTest, UnknownShapesAreRefused) {
  TempDir dir;
  SynthOptions synth = Small();
  synth.architecture = "kimi-k9";
  ExpectError(ErrorCode::kUsage, {"kimi-k9", "kimi-k3", "kimi-linear-48b", "k3-small"},
              [&] { SynthesizeModel(synth, dir.path(), {}, nullptr); });
}

TEST(SynthTest, PartsOfATensorAreThoseOfTheWhole) {
  ThreadPool pool(2);
  WeightGenerator generator(pool);
  const StreamKey key = {1, 2, 3};
  std::vector<std::byte> whole(200'000);
  const auto compare = [&](const auto& fill) {
    fill(0, std::span(whole));
    std::vector<std::byte> part(20'002);
    fill(30'006, std::span(part));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 30'006));
  };
  compare([&](uint64_t first, std::span<std::byte> out) {
    generator.Fill(key, {}, {DType::kBF16, first / 2, 1'000'000}, out);
  });
  compare([&](uint64_t first, std::span<std::byte> out) {
    generator.FillCodes(key, 0.02, first, out);
  });
  compare([&](uint64_t first, std::span<std::byte> out) {
    generator.FillScales(key, 0.02, first, out);
  });
}

// Codes and scales together have the deviation asked for, and use the range of E2M1.
TEST(SynthTest, Mxfp4WeightsHaveTheDeviationAskedFor) {
  constexpr double kSizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  ThreadPool pool(1);
  WeightGenerator generator(pool);
  const StreamKey key = {5, 6, 7};
  std::vector<std::byte> codes(160'000);
  std::vector<std::byte> scales(codes.size() / 16);
  generator.FillCodes(key, 0.0167, 0, codes);
  generator.FillScales(key, 0.0167, 0, scales);
  double sum = 0;
  size_t num_full = 0;  // codes of the largest magnitude
  for (size_t i = 0; i < codes.size(); ++i) {
    const double scale = std::ldexp(1.0, static_cast<int>(scales[i / 16]) - 127);
    for (const int shift : {0, 4}) {
      const auto code = static_cast<size_t>(codes[i] >> shift) & 7;
      sum += std::pow(kSizes[code] * scale, 2);
      num_full += code == 7 ? 1 : 0;
    }
  }
  EXPECT_NEAR(std::sqrt(sum / (2.0 * static_cast<double>(codes.size()))), 0.0167, 0.0007);
  EXPECT_GT(num_full, codes.size() / 100);
}

// ---- published shapes

}  // namespace
}  // namespace thimble
