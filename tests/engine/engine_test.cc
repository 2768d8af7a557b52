#include "engine/engine.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/byte_size.h"
#include "base/error.h"
#include "engine/generation.h"
#include "format/tensor_store.h"
#include "support/all_logits.h"
#include "support/checkpoint_builder.h"
#include "support/expect_error.h"
#include "support/file_edit.h"
#include "support/fixed_process.h"
#include "support/sanitizers.h"
#include "support/silent_listener.h"
#include "support/temp_dir.h"
#include "support/without_capability.h"

namespace thimble {
namespace {

using Json = nlohmann::json;

constexpr ReadMode kReadModes[] = {ReadMode::kAuto, ReadMode::kDirect, ReadMode::kBuffered,
                                   ReadMode::kMapped};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// ---- against the models' own reference code (tests/fixtures/README.md)

class FixtureTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path Dir() const {
    return std::filesystem::path(THIMBLE_SOURCE_DIR "/tests/fixtures") / GetParam();
  }

  // The expected logits of prompt `i`, out of expected.safetensors.
  std::vector<float> ExpectedLogits(size_t i) const {
    std::ifstream file(Dir() / "expected.safetensors", std::ios::binary);
    uint64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), sizeof(length));
    std::string header(length, '\0');
    file.read(header.data(), static_cast<std::streamsize>(length));
    const Json offsets = Json::parse(header)["p" + std::to_string(i) + ".logits"]["data_offsets"];
    const auto begin = offsets[0].get<size_t>();
    std::vector<float> logits((offsets[1].get<size_t>() - begin) / sizeof(float));
    file.seekg(static_cast<std::streamoff>(sizeof(length) + length + begin));
    file.read(reinterpret_cast<char*>(logits.data()),
              static_cast<std::streamsize>(logits.size() * sizeof(float)));
    return logits;
  }

  Json Prompts() const {
    std::ifstream file(Dir() / "expected.json");
    return Json::parse(file)["prompts"];
  }
};

TEST_P(FixtureTest, LogitsEqualTheReferenceAtEveryPosition) {
  constexpr float kTolerance = 5e-5F;  // of the largest |logit|, as the fixtures state
  const ModelDirectory model = ModelDirectory::Open(Dir());
  const size_t vocab_size = model.config.vocab_size;
  const Json prompts = Prompts();
  ASSERT_EQ(prompts.size(), 4U);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto tokens = prompts[i]["tokens"].get<std::vector<TokenId>>();
    const std::vector<float> expected = ExpectedLogits(i);
    const std::vector<float> found = AllLogits(model, {}, tokens);
    ASSERT_EQ(found.size(), expected.size());
    float largest = 0;
    for (const float logit : expected) largest = std::max(largest, std::abs(logit));
    for (size_t j = 0; j < found.size(); ++j) {
      ASSERT_NEAR(found[j], expected[j], kTolerance * largest)
          << "prompt " << i << ", position " << j / vocab_size << ", token " << j % vocab_size;
    }
    for (size_t t = 0; t < tokens.size(); ++t) {
      if (prompts[i]["argmax_gap"][t].get<float>() <= 2 * kTolerance * largest) continue;
      const float* row = found.data() + t * vocab_size;
      EXPECT_EQ(std::max_element(row, row + vocab_size) - row, prompts[i]["argmax"][t].get<long>())
          << "prompt " << i << ", position " << t;
    }
  }
}

TEST_P(FixtureTest, GreedyContinuationsEqualTheReference) {
  const ModelDirectory model = ModelDirectory::Open(Dir());
  for (const Json& prompt : Prompts()) {
    const auto tokens = prompt["tokens"].get<std::vector<TokenId>>();
    const auto expected = prompt["greedy"].get<std::vector<TokenId>>();
    EngineOptions options;
    options.context = tokens.size() + expected.size();
    const auto engine = Engine::Open(model, options);
    Session session(*engine);
    GenerationOptions generation;
    generation.max_tokens = expected.size();
    SilentListener listener;
    EXPECT_EQ(Generate(session, tokens, generation, listener).ids, expected);
  }
}

TEST_P(FixtureTest, BitsDependOnNeitherChunkThreadsNorBudget) {
  const ModelDirectory model = ModelDirectory::Open(Dir());
  const auto tokens = Prompts()[3]["tokens"].get<std::vector<TokenId>>();
  const std::vector<float> expected = AllLogits(model, {}, tokens);
  for (const size_t chunk : {1, 7, 512}) {
    for (const size_t threads : {1, 2}) {
      EngineOptions options;
      options.prefill_chunk = chunk;
      options.num_threads = threads;
      EXPECT_TRUE(SameBits(expected, AllLogits(model, options, tokens)))
          << "chunk " << chunk << ", threads " << threads;
    }
  }
}

// |a - b| / |b|, the median over the rows. The median, since a router that chooses another expert
// after a tiny change moves single rows by far.
double MedianDifference(const std::vector<float>& a, const std::vector<float>& b, size_t width) {
  std::vector<double> differences;
  for (size_t row = 0; row < b.size(); row += width) {
    double difference = 0;
    double norm = 0;
    for (size_t i = row; i < row + width; ++i) {
      difference += std::pow(double{a[i]} - double{b[i]}, 2);
      norm += std::pow(double{b[i]}, 2);
    }
    differences.push_back(std::sqrt(difference / norm));
  }
  std::sort(differences.begin(), differences.end());
  return differences[differences.size() / 2];
}

// The bounds are twice what was measured (docs/MODEL.md).
TEST_P(FixtureTest, NarrowLatentsChangeTheLogitsALittleAndAlwaysTheSame) {
  const ModelDirectory model = ModelDirectory::Open(Dir());
  const auto tokens = Prompts()[3]["tokens"].get<std::vector<TokenId>>();
  const std::vector<float> exact = AllLogits(model, {}, tokens);
  const std::pair<LatentFormat, double> bounds[] = {{LatentFormat::kBF16, 0.005},
                                                    {LatentFormat::kFP8, 0.065}};
  for (const auto& [format, bound] : bounds) {
    EngineOptions options;
    options.latents = format;
    const std::vector<float> expected = AllLogits(model, options, tokens);
    ASSERT_EQ(expected.size(), exact.size());
    const double difference = MedianDifference(expected, exact, model.config.vocab_size);
    EXPECT_GT(difference, 0) << NameOf(format);
    EXPECT_LT(difference, bound) << NameOf(format);
    constexpr std::pair<size_t, size_t> kChunksAndThreads[] = {{1, 2}, {7, 1}, {512, 2}};
    for (const auto& [chunk, threads] : kChunksAndThreads) {
      options.prefill_chunk = chunk;
      options.num_threads = threads;
      EXPECT_TRUE(SameBits(expected, AllLogits(model, options, tokens)))
          << NameOf(format) << ", chunk " << chunk << ", threads " << threads;
    }
  }
}

TEST_P(FixtureTest, BitsDoNotDependOnHowTheWeightsAreRead) {
  const ModelDirectory model = ModelDirectory::Open(Dir());
  const auto tokens = Prompts()[2]["tokens"].get<std::vector<TokenId>>();
  const std::vector<float> expected = AllLogits(model, {}, tokens);
  for (const ReadMode mode : kReadModes) {
    for (const bool preload : {false, true}) {
      EngineOptions options;
      options.read_mode = mode;
      options.preload = preload;
      EXPECT_TRUE(SameBits(expected, AllLogits(model, options, tokens)))
          << Engine::Open(model, options)->ReaderDescription() << ", preload " << preload;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, FixtureTest, ::testing::Values("k3-small", "kimi-linear-small"),
                         [](const auto& test) {
                           return std::string(test.param).substr(0, 2) == "k3" ? "KimiK3"
                                                                               : "KimiLinear";
                         });

// ---- budgets, on a small synthetic model

class BudgetTest : public ::testing::Test {
 protected:
  BudgetTest() {
    CheckpointDims dims;
    dims.layers = 8;
    dims.experts = 16;
    CheckpointBuilder::KimiK3(dims).Write(dir_.path());
    model_ = std::make_unique<ModelDirectory>(ModelDirectory::Open(dir_.path()));
    for (TokenId i = 0; i < 24; ++i) tokens_.push_back((i * 37 + 5) % 96);
  }

  // Options whose plan depends neither on this process nor on the machine.
  static EngineOptions FixedOptions() {
    EngineOptions options;
    options.num_threads = 2;
    options.process = kFixedProcess;
    return options;
  }

  uint64_t SmallestBudget(EngineOptions options) const {
    options.memory_bytes = 1;
    try {
      AllLogits(*model_, options, tokens_);
    } catch (const OverBudgetError& error) {
      return error.smallest_budget();
    }
    ADD_FAILURE() << "a budget of 1 byte was enough";
    return 0;
  }

  void ExpectPlannedLedger(ReadMode mode) const;

  TempDir dir_;
  std::unique_ptr<ModelDirectory> model_;
  std::vector<TokenId> tokens_;
};

TEST_F(BudgetTest, EveryBudgetFromTheSmallestOnGivesTheSameBits) {
  for (const LatentFormat format : {LatentFormat::kF32, LatentFormat::kBF16, LatentFormat::kFP8}) {
    EngineOptions options = FixedOptions();
    options.latents = format;
    const std::vector<float> expected = AllLogits(*model_, options, tokens_);
    const uint64_t least = SmallestBudget(options);
    const uint64_t step = format == LatentFormat::kF32 ? 512 * kKiB : 2 * kMB;
    for (uint64_t extra = 0; extra < 8 * kMB; extra += step) {
      options.memory_bytes = least + extra;
      EXPECT_TRUE(SameBits(expected, AllLogits(*model_, options, tokens_)))
          << NameOf(format) << ", " << extra;
    }
  }
}

TEST_F(BudgetTest, EveryBudgetGivesTheSameBitsFromMappedWeightsToo) {
  const std::vector<float> expected = AllLogits(*model_, {}, tokens_);
  for (const bool preload : {false, true}) {
    EngineOptions options = FixedOptions();
    options.read_mode = ReadMode::kMapped;
    options.preload = preload;
    const uint64_t least = SmallestBudget(options);
    for (uint64_t extra = 0; extra < 8 * kMB; extra += 2 * kMB) {
      options.memory_bytes = least + extra;
      EXPECT_TRUE(SameBits(expected, AllLogits(*model_, options, tokens_)))
          << preload << ", " << extra;
    }
  }
}

TEST_F(BudgetTest, TheLedgerIsWhatThePlanSaidAndStaysInsideTheBudget) {
  for (const ReadMode mode : kReadModes) ExpectPlannedLedger(mode);
}

void BudgetTest::ExpectPlannedLedger(ReadMode mode) const {
  EngineOptions options = FixedOptions();
  options.context = 64;
  options.read_mode = mode;
  options.memory_bytes = SmallestBudget(options) + 2 * kMB;
  const auto engine = Engine::Open(*model_, options);
  Session session(*engine);
  session.Append(tokens_, nullptr);
  uint64_t used = 0;
  for (const auto& [name, bytes] : engine->Ledger()) {
    used += bytes;
    EXPECT_LE(bytes, engine->plan().items.at(name)) << name;
  }
  EXPECT_LE(used, *options.memory_bytes);
}

TEST_F(BudgetTest, ManySessionsOneAfterAnotherTakeNoMoreThanOne) {
  EngineOptions options = FixedOptions();
  options.context = 64;
  const auto engine = Engine::Open(*model_, options);
  std::map<std::string, uint64_t> ledger;
  for (int i = 0; i < 50; ++i) {
    Session session(*engine);
    session.Append(tokens_, nullptr);
    if (i == 0) ledger = engine->Ledger();
    EXPECT_EQ(engine->Ledger(), ledger);
  }
}

TEST_F(BudgetTest, ReadsAreCounted) {
  EngineOptions options = FixedOptions();
  options.context = 64;
  const auto engine = Engine::Open(*model_, options);
  Session session(*engine);
  session.Append(tokens_, nullptr);
  const EngineStats first = engine->stats();
  EXPECT_GT(first.trunk_read_bytes, 0U);
  // The prompt wants most experts, so a few more may have been read early.
  const uint64_t expert_bytes = TensorStore::Open(model_->path, model_->config).expert_bytes();
  EXPECT_EQ(first.expert_read_bytes % expert_bytes, 0U);
  EXPECT_GE(first.expert_read_bytes / expert_bytes, first.expert_requests - first.expert_hits);
  // All of it is in memory now: a further token reads its embedding row alone, and perhaps new
  // experts.
  session.Append(std::span(tokens_).first(1), nullptr);
  const EngineStats second = engine->stats();
  EXPECT_EQ(second.trunk_read_bytes - first.trunk_read_bytes, model_->config.hidden_size * 2);
}

TEST_F(BudgetTest, APreloadReadsWhatStaysAndTellsOfIt) {
  EngineOptions options = FixedOptions();
  options.context = 64;
  options.preload = true;
  uint64_t told = 0;
  options.on_load = [&](const char*, uint64_t done, uint64_t total) {
    EXPECT_LE(done, total);
    told = done;
  };
  const auto engine = Engine::Open(*model_, options);
  const EngineStats loaded = engine->stats();
  EXPECT_GT(told, 0U);
  EXPECT_EQ(loaded.ReadBytes(), told);
  Session session(*engine);
  session.Append(tokens_, nullptr);
  // All of it fits: nothing is read later but embedding rows.
  const EngineStats after = engine->stats();
  EXPECT_EQ(after.trunk_read_bytes - loaded.trunk_read_bytes,
            tokens_.size() * model_->config.hidden_size * 2);
  EXPECT_EQ(after.expert_read_bytes, loaded.expert_read_bytes);
  EXPECT_EQ(after.expert_hits, after.expert_requests);
}

// ---- files that change while they are used

class TruncationTest : public BudgetTest {
 protected:
  void Shorten() { std::filesystem::resize_file(shard_, kept_.size() / 2); }
  void Restore() { WriteText(shard_, kept_); }

  const std::filesystem::path shard_ = dir_ / "model-00003-of-000009.safetensors";
  const std::string kept_ = ReadBytes(shard_);
};

TEST_F(TruncationTest, IsReportedPoisonsTheSessionAndTheEngineSurvives) {
  const std::vector<float> expected = AllLogits(*model_, {}, tokens_);
  for (const ReadMode mode : {ReadMode::kBuffered, ReadMode::kDirect}) {
    EngineOptions options = FixedOptions();
    options.context = tokens_.size();
    options.all_logits = true;
    options.read_mode = mode;
    options.memory_bytes = SmallestBudget(options) + kMB;
    const auto engine = Engine::Open(*model_, options);
    Shorten();
    {
      Session broken(*engine);
      ExpectError(ErrorCode::kRuntime, {shard_.filename().string(), "ends at byte", "shortened"},
                  [&] { broken.Append(tokens_, nullptr); });
      ExpectError(ErrorCode::kUsage, {"start it anew"}, [&] { broken.Append(tokens_, nullptr); });
    }
    Restore();
    Session session(*engine);
    std::vector<float> logits;
    session.Append(tokens_, nullptr, [&](size_t, const float* rows, size_t num_rows) {
      logits.insert(logits.end(), rows, rows + num_rows * model_->config.vocab_size);
    });
    EXPECT_TRUE(SameBits(expected, logits)) << engine->ReaderDescription();
  }
}

TEST_F(TruncationTest, InTheMiddleOfAConversationEndsThatConversation) {
  EngineOptions options = FixedOptions();
  options.context = 2 * tokens_.size();
  options.memory_bytes = SmallestBudget(options);
  const auto engine = Engine::Open(*model_, options);
  // No expert stays in memory, so that the second half of the shard, experts, is read again.
  ASSERT_EQ(engine->plan().cached_experts, 0U);
  Session session(*engine);
  session.Append(tokens_, nullptr);
  Shorten();
  ExpectError(ErrorCode::kRuntime, {shard_.filename().string(), "shortened"}, [&] {
    for (const TokenId& token : tokens_) session.Append({&token, 1}, nullptr);
  });
  ExpectError(ErrorCode::kUsage, {"start it anew"}, [&] { session.Append(tokens_, nullptr); });
  Restore();
}

// Does something when a sweep has begun.
class AtFirstLayer : public Session::Observer {
 public:
  explicit AtFirstLayer(std::function<void()> action) : action_(std::move(action)) {}
  bool OnLayer(size_t layer) override {
    if (layer == 0) action_();
    return true;
  }
  void OnProgress(size_t, size_t) override {}

 private:
  std::function<void()> action_;
};

// Weights that are read no more, since they are in memory, are not there where they are mapped.
TEST_F(TruncationTest, TakesMappedWeightsAwayAndIsReportedInsteadOfACrash) {
  EngineOptions options = FixedOptions();
  options.context = 64;
  options.read_mode = ReadMode::kMapped;
  options.preload = true;
  const auto engine = Engine::Open(*model_, options);
  {
    Session session(*engine);
    session.Append(tokens_, nullptr);
    AtFirstLayer shorten([&] { std::filesystem::resize_file(shard_, 4096); });
    ExpectError(ErrorCode::kRuntime, {shard_.filename().string(), "gone", "shortened"},
                [&] { session.Append(tokens_, &shorten); });
  }
  Restore();
  // What was in memory is zeros now.
  Session next(*engine);
  ExpectError(ErrorCode::kRuntime, {"gone"}, [&] { next.Append(tokens_, nullptr); });
  EngineOptions anew;
  anew.read_mode = ReadMode::kMapped;
  EXPECT_TRUE(SameBits(AllLogits(*model_, {}, tokens_), AllLogits(*model_, anew, tokens_)));
}

// ---- locked memory

// The limit on locked memory does not bind a process with CAP_IPC_LOCK, such as one of root.
class LockTest : public BudgetTest {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "sanitizers replace mlock by a function that does nothing";
    ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before_), 0);
  }
  void TearDown() override { ::setrlimit(RLIMIT_MEMLOCK, &before_); }

  void Limit(rlim_t bytes) const {
    const rlimit wanted = {bytes, before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &wanted), 0);
  }
  std::unique_ptr<Engine> Open() const {
    EngineOptions options = FixedOptions();
    options.context = 64;
    options.memory_bytes = SmallestBudget(options) + kMB;
    return Engine::Open(*model_, options);
  }

  rlimit before_ = {};
  const WithoutCapability unprivileged_{CAP_IPC_LOCK};
};

TEST_F(LockTest, WhatStaysIsLockedWhereTheLimitAllowsIt) {
  constexpr uint64_t kEnough = 4 * kMB;
  if (before_.rlim_max < kEnough) {
    GTEST_SKIP() << "the hard limit on locked memory is " << FormatBytes(before_.rlim_max);
  }
  Limit(kEnough);
  const auto engine = Open();
  const uint64_t pinned = engine->plan().pinned_bytes;
  EXPECT_GT(pinned, 0U);
  EXPECT_EQ(engine->locked_memory().locked_bytes, pinned);
  {
    const Session session(*engine);
    const LockedMemory& locked = engine->locked_memory();
    EXPECT_EQ(locked.wanted_bytes, pinned + engine->Ledger().at("session state"));
    EXPECT_EQ(locked.locked_bytes, locked.wanted_bytes);
    EXPECT_EQ(locked.obstacle, "");
  }
  EXPECT_EQ(engine->locked_memory().wanted_bytes, pinned);
  EXPECT_EQ(engine->locked_memory().locked_bytes, pinned);
}

TEST_F(LockTest, TheEngineSaysWhyNothingIsLocked) {
  Limit(0);
  const auto engine = Open();
  {
    const Session session(*engine);
    EXPECT_EQ(engine->locked_memory().wanted_bytes,
              engine->plan().pinned_bytes + engine->Ledger().at("session state"));
    EXPECT_EQ(engine->locked_memory().locked_bytes, 0U);
    EXPECT_THAT(engine->locked_memory().obstacle, testing::HasSubstr("ulimit -l"));
  }
  EXPECT_EQ(engine->locked_memory().wanted_bytes, engine->plan().pinned_bytes);
  EXPECT_EQ(engine->locked_memory().locked_bytes, 0U);
}

TEST_F(LockTest, MappedWeightsAreTheKernels) {
  EngineOptions options = FixedOptions();
  options.context = 64;
  options.read_mode = ReadMode::kMapped;
  const auto engine = Engine::Open(*model_, options);
  EXPECT_EQ(engine->locked_memory().wanted_bytes, 0U);
}

}  // namespace
}  // namespace thimble
