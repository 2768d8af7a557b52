#include "model/decoder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "model/allocation_counter.h"
#include "support/checkpoint_builder.h"
#include "support/expect_error.h"
#include "support/ram_weights.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

constexpr size_t kContext = 160;

// One checkpoint, opened once for all tests of its architecture.
struct Model {
  explicit Model(const CheckpointBuilder& builder) {
    builder.Write(dir.path());
    config = ReadModelConfig(dir.path());
    store = std::make_unique<TensorStore>(TensorStore::Open(dir.path(), config));
  }
  TempDir dir;
  ModelConfig config;
  std::unique_ptr<TensorStore> store;
};

const Model& ModelOf(Architecture architecture) {
  static const Model k3(CheckpointBuilder::KimiK3());
  static const Model linear(CheckpointBuilder::KimiLinear());
  return architecture == Architecture::kKimiK3 ? k3 : linear;
}

// A decoder over weights in memory.
struct Bench {
  explicit Bench(const Model& of, size_t threads = 2)
      : model(of),
        weights(of.config, *of.store),
        pool(threads),
        decoder(of.config, {kContext, 4, threads}, BestKernels(), pool, weights, weights, budget) {}

  StateCache NewState() { return StateCache(model.config, kContext, budget); }

  // The logits of every token, with the prompt cut into chunks of `width`.
  std::vector<float> Logits(std::span<const uint32_t> tokens, size_t width) {
    StateCache state = NewState();
    std::vector<float> logits(tokens.size() * model.config.vocab_size);
    for (size_t done = 0; done < tokens.size(); done += width) {
      const SweepItem item = {&state, tokens.subspan(done, std::min(width, tokens.size() - done)),
                              LogitsWanted::kAll, logits.data() + done * model.config.vocab_size};
      decoder.Sweep({&item, 1}, nullptr);
    }
    return logits;
  }

  const Model& model;
  MemoryBudget budget{1 << 30};
  RamWeights weights;
  ThreadPool pool;
  Decoder decoder;
};

std::vector<uint32_t> Tokens(size_t count, uint32_t seed, const ModelConfig& config) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t& token : tokens) {
    seed = seed * 1664525 + 1013904223;
    token = (seed >> 8) % static_cast<uint32_t>(config.vocab_size);
  }
  return tokens;
}

::testing::AssertionResult SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << "value " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

class DecoderTest : public ::testing::TestWithParam<Architecture> {
 protected:
  const Model& model_ = ModelOf(GetParam());
  const std::vector<uint32_t> tokens_ = Tokens(37, 7, model_.config);
  // Over more than two of the attention's blocks.
  const std::vector<uint32_t> long_ = Tokens(150, 11, model_.config);
};

TEST_P(DecoderTest, LogitsDoNotDependOnChunking) {
  Bench bench(model_);
  const auto whole = bench.Logits(long_, long_.size());
  for (const size_t width : {1, 2, 7, 16, 67}) {
    EXPECT_TRUE(SameBits(whole, bench.Logits(long_, width))) << "chunks of " << width;
  }
}

TEST_P(DecoderTest, LogitsDoNotDependOnThreads) {
  Bench one(model_, 1);
  const auto expected = one.Logits(long_, 67);
  for (const size_t threads : {2, 3, 5}) {
    Bench bench(model_, threads);
    for (const size_t width : {1, 67}) {
      EXPECT_TRUE(SameBits(expected, bench.Logits(long_, width)))
          << threads << " threads, chunks of " << width;
    }
  }
}

TEST_P(DecoderTest, LogitsDoNotDependOnHowWeightsArrive) {
  Bench bench(model_);
  const auto expected = bench.Logits(tokens_, 16);
  bench.weights.reverse_experts = true;
  for (const size_t rows : {1, 3, 48}) {
    bench.weights.block_rows = rows;
    EXPECT_TRUE(SameBits(expected, bench.Logits(tokens_, 16))) << "blocks of " << rows << " rows";
  }
  EXPECT_EQ(bench.weights.num_lent(), 0U);
}

// Three sessions, at different positions and with spans of different lengths, in the same sweeps.
TEST_P(DecoderTest, LogitsDoNotDependOnCompany) {
  Bench bench(model_);
  const size_t vocab_size = model_.config.vocab_size;
  std::vector<std::vector<uint32_t>> prompts;
  std::vector<StateCache> states;
  std::vector<std::vector<float>> logits;
  for (uint32_t i = 0; i < 3; ++i) {
    prompts.push_back(Tokens(20, 100 + i, model_.config));
    states.push_back(bench.NewState());
    logits.emplace_back(prompts[i].size() * vocab_size);
  }
  std::vector<size_t> done = {0, 0, 0};
  for (size_t round = 0; done[0] < 20 || done[1] < 20 || done[2] < 20; ++round) {
    std::vector<SweepItem> items;
    for (size_t i = 0; i < 3; ++i) {
      const size_t count = std::min((round + i) % 4 + i, 20 - done[i]);
      if (count == 0) continue;
      items.push_back({&states[i], std::span(prompts[i]).subspan(done[i], count),
                       LogitsWanted::kAll, logits[i].data() + done[i] * vocab_size});
      done[i] += count;
    }
    if (!items.empty()) bench.decoder.Sweep(items, nullptr);
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(SameBits(bench.Logits(prompts[i], 20), logits[i])) << "session " << i;
  }
}

TEST_P(DecoderTest, LastLogitsAreThoseOfTheLastToken) {
  Bench bench(model_);
  const size_t vocab_size = model_.config.vocab_size;
  const auto all = bench.Logits(tokens_, tokens_.size());
  StateCache state = bench.NewState();
  std::vector<float> last(vocab_size);
  const SweepItem item = {&state, tokens_, LogitsWanted::kLast, last.data()};
  bench.decoder.Sweep({&item, 1}, nullptr);
  EXPECT_TRUE(SameBits({all.end() - static_cast<std::ptrdiff_t>(vocab_size), all.end()}, last));
  EXPECT_EQ(state.num_tokens(), tokens_.size());
}

TEST_P(DecoderTest, ASweepAllocatesNothing) {
  Bench bench(model_);
  StateCache state = bench.NewState();
  std::vector<float> logits(model_.config.vocab_size);
  const auto sweep = [&](std::span<const uint32_t> tokens) {
    const SweepItem item = {&state, tokens, LogitsWanted::kLast, logits.data()};
    bench.decoder.Sweep({&item, 1}, nullptr);
  };
  sweep(std::span(tokens_).first(9));
  const size_t before = NumAllocations();
  sweep(std::span(tokens_).subspan(9, 1));
  sweep(std::span(tokens_).subspan(10, 20));
  EXPECT_EQ(NumAllocations() - before, 0U);
}

TEST_P(DecoderTest, RefusesWhatItCannotDoAndChangesNothing) {
  Bench bench(model_);
  StateCache state = bench.NewState();
  const auto sweep = [&](std::span<const uint32_t> tokens) {
    const SweepItem item = {&state, tokens, LogitsWanted::kNone, nullptr};
    bench.decoder.Sweep({&item, 1}, nullptr);
  };
  const std::vector<uint32_t> foreign = {1, static_cast<uint32_t>(model_.config.vocab_size)};
  ExpectError(ErrorCode::kUsage, {"outside the vocabulary"}, [&] { sweep(foreign); });
  ExpectError(ErrorCode::kUsage, {"at least one"}, [&] { sweep({}); });
  sweep(Tokens(kContext, 3, model_.config));
  ExpectError(ErrorCode::kUsage, {"context is full"}, [&] { sweep(std::span(tokens_).first(1)); });
  EXPECT_FALSE(state.poisoned());
  EXPECT_EQ(state.num_tokens(), kContext);
}

class StopAt : public SweepObserver {
 public:
  explicit StopAt(size_t layer) : layer_(layer) {}
  bool OnLayer(size_t layer) override { return layer < layer_; }

 private:
  size_t layer_;
};

TEST_P(DecoderTest, AStoppedSweepPoisonsItsSessionOnly) {
  Bench bench(model_);
  StateCache stopped = bench.NewState();
  const SweepItem item = {&stopped, tokens_, LogitsWanted::kNone, nullptr};
  StopAt observer(2);
  ExpectError(ErrorCode::kInterrupted, {"layer 2"}, [&] {
    bench.decoder.Sweep({&item, 1}, &observer);
  });
  EXPECT_TRUE(stopped.poisoned());
  ExpectError(ErrorCode::kUsage, {"start it anew"}, [&] {
    bench.decoder.Sweep({&item, 1}, nullptr);
  });
  Bench fresh(model_);
  EXPECT_TRUE(SameBits(fresh.Logits(tokens_, 8), bench.Logits(tokens_, 8)));
}

// Stops at the n-th question that is asked within a layer.
class StopWithin : public SweepObserver {
 public:
  explicit StopWithin(size_t left) : left_(left) {}
  bool OnLayer(size_t layer) override {
    layer_ = layer;
    return true;
  }
  bool Continue() override { return left_-- > 0; }
  size_t layer() const { return layer_; }

 private:
  size_t left_;
  size_t layer_ = 0;
};

TEST_P(DecoderTest, ASweepIsStoppedWithinALayer) {
  for (const size_t questions : {size_t{0}, size_t{5}}) {
    Bench bench(model_);
    StateCache stopped = bench.NewState();
    const SweepItem item = {&stopped, tokens_, LogitsWanted::kNone, nullptr};
    StopWithin observer(questions);
    ExpectError(ErrorCode::kInterrupted, {"middle of a layer"}, [&] {
      bench.decoder.Sweep({&item, 1}, &observer);
    });
    EXPECT_EQ(observer.layer(), 0u) << "a layer asks more than " << questions << " times";
    EXPECT_TRUE(stopped.poisoned());
  }
}

TEST_P(DecoderTest, NumbersThatAreNotFiniteAreReportedWithTheirLayer) {
  CheckpointBuilder builder = GetParam() == Architecture::kKimiK3 ? CheckpointBuilder::KimiK3()
                                                                  : CheckpointBuilder::KimiLinear();
  const std::string prefix = GetParam() == Architecture::kKimiK3 ? "language_model." : "";
  std::string& bytes =
      builder.FindTensor(prefix + "model.layers.1.post_attention_layernorm.weight").bytes;
  bytes[0] = '\xc0';  // 0x7fc0 is a NaN in bfloat16
  bytes[1] = '\x7f';
  const Model damaged(builder);
  Bench bench(damaged);
  ExpectError(ErrorCode::kRuntime, {"layer 1", "not finite"}, [&] { bench.Logits(tokens_, 4); });
}

TEST_P(DecoderTest, LogitsThatAreNotFiniteAreReported) {
  CheckpointBuilder builder = GetParam() == Architecture::kKimiK3 ? CheckpointBuilder::KimiK3()
                                                                  : CheckpointBuilder::KimiLinear();
  const std::string prefix = GetParam() == Architecture::kKimiK3 ? "language_model." : "";
  std::string& bytes = builder.FindTensor(prefix + "lm_head.weight").bytes;
  bytes.replace(bytes.size() - 2, 2, "\xc0\x7f");  // 0x7fc0 is a NaN in bfloat16
  const Model damaged(builder);
  Bench bench(damaged);
  ExpectError(ErrorCode::kRuntime, {"lm_head.weight", "not finite"},
              [&] { bench.Logits(tokens_, 4); });
}

INSTANTIATE_TEST_SUITE_P(Architectures, DecoderTest,
                         ::testing::Values(Architecture::kKimiK3, Architecture::kKimiLinear),
                         [](const auto& test) {
                           return test.param == Architecture::kKimiK3 ? "KimiK3" : "KimiLinear";
                         });

}  // namespace
}  // namespace thimble
