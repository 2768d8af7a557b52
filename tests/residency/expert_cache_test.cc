#include "residency/expert_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "base/byte_size.h"
#include "residency/checkpoint.h"
#include "support/expect_error.h"
#include "support/fault_reader.h"

namespace thimble {
namespace {

using Experts = std::vector<uint32_t>;

// A cache over a small checkpoint, with its reader, budget and monitor.
class Cache {
 public:
  Cache(const Checkpoint& checkpoint, const ExpertMemory& memory, bool shuffled = false)
      : checkpoint_(checkpoint),
        instant_(checkpoint.paths()),
        dirty_(instant_),
        failing_(dirty_, checkpoint.paths()) {
    if (shuffled) shuffled_.emplace(failing_, 5);
    BlockReader& reader = shuffled_ ? static_cast<BlockReader&>(*shuffled_) : failing_;
    cache_.emplace(checkpoint.config(), checkpoint.store(), memory, reader, monitor_, budget_);
  }

  // Requests experts and takes the first `num_taken`, each compared with the file.
  void Take(size_t layer, const Experts& experts, size_t num_taken = SIZE_MAX) {
    cache_->Request(layer, experts);
    std::set<uint32_t> taken;
    while (taken.size() < std::min(num_taken, experts.size())) {
      const Lease<ExpertView> expert = cache_->Next();
      EXPECT_TRUE(std::ranges::count(experts, expert->expert) == 1) << expert->expert;
      EXPECT_TRUE(taken.insert(expert->expert).second) << expert->expert << " came twice";
      ExpectEqualsFile(layer, *expert);
    }
  }

  // Requests `experts` and returns how many of them were there.
  uint64_t HitsOf(size_t layer, const Experts& experts) {
    const uint64_t before = cache_->num_hits();
    Take(layer, experts);
    return cache_->num_hits() - before;
  }

  void ExpectEqualsFile(size_t layer, const ExpertView& view) const {
    const ModelConfig& config = checkpoint_.config();
    const ExpertExtent extent = checkpoint_.store().Expert(layer, view.expert);
    const auto expect = [&](const WeightMatrix& matrix, size_t rows, size_t cols, size_t first) {
      EXPECT_EQ(matrix.format, config.moe.format);
      EXPECT_EQ(matrix.rows, rows);
      EXPECT_EQ(matrix.cols, cols);
      const ExpertPiece& data = extent[first];
      const ExpertPiece& scales = extent[first + 1];
      EXPECT_TRUE(DataOf(matrix) == checkpoint_.Bytes(data.file, data.offset, data.bytes));
      EXPECT_TRUE(ScalesOf(matrix) == checkpoint_.Bytes(scales.file, scales.offset, scales.bytes));
    };
    expect(view.gate, config.moe.inner_size, config.ExpertWidth(), 0);
    expect(view.down, config.ExpertWidth(), config.moe.inner_size, 2);
    expect(view.up, config.moe.inner_size, config.ExpertWidth(), 4);
  }

  ExpertCache& operator*() { return *cache_; }
  ExpertCache* operator->() { return &*cache_; }
  void Destroy() { cache_.reset(); }
  const MemoryBudget& budget() const { return budget_; }
  FailingReader& failing() { return failing_; }

 private:
  const Checkpoint& checkpoint_;
  InstantReader instant_;
  DirtyReader dirty_;
  FailingReader failing_;
  std::optional<ShuffledReader> shuffled_;
  ReadMonitor monitor_;
  MemoryBudget budget_{kGiB};
  std::optional<ExpertCache> cache_;
};

Experts AllExperts(const Checkpoint& checkpoint) {
  Experts experts(checkpoint.config().moe.num_experts);
  std::iota(experts.begin(), experts.end(), 0U);
  return experts;
}

// Too few to announce anything of the next layer.
Experts FewExperts(const Checkpoint& checkpoint, std::mt19937_64& random) {
  const Experts all = AllExperts(checkpoint);
  Experts few;
  std::sample(all.begin(), all.end(), std::back_inserter(few), 1 + random() % (all.size() / 2 - 1),
              random);
  return few;
}

// A random subset, ascending.
Experts SomeExperts(const Checkpoint& checkpoint, std::mt19937_64& random) {
  const Experts all = AllExperts(checkpoint);
  Experts some;
  std::sample(all.begin(), all.end(), std::back_inserter(some), 1 + random() % all.size(), random);
  return some;
}

// ---- every shape of memory

using Shape = std::tuple<Architecture, bool>;  // bool: shuffled completions

class ExpertCacheTest : public testing::TestWithParam<Shape> {
 protected:
  // Calls visit(cache) for windows of one slot and more, and nothing, little, much or all cached.
  template <typename F>
  void ForEachCache(const F& visit) {
    const size_t all = layers_.size() * all_.size();
    for (const size_t window : {1, 2, 3, 8, 20}) {
      for (const size_t cached :
           {size_t{0}, size_t{1}, size_t{5}, all / 2, all - 1, all, 2 * all}) {
        SCOPED_TRACE(testing::Message() << "window " << window << ", cached " << cached);
        Cache cache(checkpoint_, {window, cached}, std::get<1>(GetParam()));
        visit(cache);
        if (HasFatalFailure()) return;
      }
    }
  }

  const Checkpoint& checkpoint_ = SmallCheckpoint(std::get<0>(GetParam()));
  const Experts all_ = AllExperts(checkpoint_);
  const std::vector<size_t> layers_ = checkpoint_.MoeLayers();
  std::mt19937_64 random_{3};
};

TEST_P(ExpertCacheTest, GivesEachRequestedExpertOnceAsInTheFile) {
  ForEachCache([&](Cache& cache) {
    for (int round = 0; round < 2; ++round) {
      for (const size_t layer : layers_) cache.Take(layer, all_);
    }
    for (int round = 0; round < 5; ++round) {
      for (const size_t layer : layers_) cache.Take(layer, SomeExperts(checkpoint_, random_));
    }
  });
}

TEST_P(ExpertCacheTest, CountsRequestsHitsAndBytes) {
  ForEachCache([&](Cache& cache) {
    uint64_t requests = 0;
    for (int round = 0; round < 4; ++round) {
      for (const size_t layer : layers_) {
        const Experts experts = FewExperts(checkpoint_, random_);
        cache.Take(layer, experts);
        requests += experts.size();
      }
    }
    EXPECT_EQ(cache->num_requests(), requests);
    EXPECT_LE(cache->num_hits(), requests);
    EXPECT_EQ(cache->read_bytes(),
              (requests - cache->num_hits()) * checkpoint_.store().expert_bytes());
  });
}

// Each sweep reads what it wants once, though most of it before it is asked for.
TEST_P(ExpertCacheTest, ReadsNothingTwiceForWideRequests) {
  ForEachCache([&](Cache& cache) {
    for (int round = 0; round < 3; ++round) {
      for (const size_t layer : layers_) cache.Take(layer, all_);
    }
    EXPECT_EQ(cache->read_bytes(),
              (cache->num_requests() - cache->num_hits()) * checkpoint_.store().expert_bytes());
  });
}

// A wide request announces one of the next layer; what comes is anything else.
TEST_P(ExpertCacheTest, AnAnnouncementBindsNobody) {
  ForEachCache([&](Cache& cache) {
    for (int round = 0; round < 12; ++round) {
      const size_t at = random_() % (layers_.size() - 1);
      cache.Take(layers_[at], all_, random_() % 3 == 0 ? random_() % all_.size() : all_.size());
      const bool next = random_() % 2 == 0;
      cache.Take(next ? layers_[at + 1] : layers_[random_() % layers_.size()],
                 next ? SomeExperts(checkpoint_, random_) : FewExperts(checkpoint_, random_));
    }
    cache->Request(layers_[0], all_);
    cache.Destroy();
    EXPECT_EQ(cache.budget().used_bytes(), 0U);
  });
}

TEST_P(ExpertCacheTest, ForgetsARequestThatWasNotTakenToItsEnd) {
  ForEachCache([&](Cache& cache) {
    for (int round = 0; round < 6; ++round) {
      for (const size_t layer : layers_) {
        const Experts experts = SomeExperts(checkpoint_, random_);
        cache.Take(layer, experts, random_() % (experts.size() + 1));
        if (round % 2 == 0) cache.Take(layer, SomeExperts(checkpoint_, random_));
      }
    }
  });
}

TEST_P(ExpertCacheTest, FinishesItsReadsAndReturnsItsMemoryWhenItGoes) {
  ForEachCache([&](Cache& cache) {
    cache.Take(layers_[0], all_, 3);
    cache->Request(layers_[1], all_);
    cache.Destroy();
    EXPECT_EQ(cache.budget().used_bytes(), 0U);
  });
}

// Wherever the one failure falls, it is reported at most once (nobody may ask any more), and the
// requests after it are served.
TEST_P(ExpertCacheTest, RecoversFromAnyFailedRead) {
  for (const size_t cached : {size_t{0}, size_t{9}, layers_.size() * all_.size()}) {
    for (size_t fails_at = 0; fails_at < 40; fails_at += 1 + fails_at / 4) {
      SCOPED_TRACE(testing::Message() << "cached " << cached << ", read " << fails_at << " fails");
      Cache cache(checkpoint_, {2, cached}, std::get<1>(GetParam()));
      cache.failing().FailAfter(fails_at);
      size_t errors = 0;
      for (int sweep = 0; sweep < 4; ++sweep) {
        try {
          for (const size_t layer : layers_) cache.Take(layer, all_);
        } catch (const Error& error) {
          ++errors;
          EXPECT_EQ(error.code(), ErrorCode::kRuntime);
          EXPECT_THAT(error.what(), testing::HasSubstr(".safetensors"));
          EXPECT_THAT(error.what(), testing::HasSubstr("injected"));
        }
      }
      EXPECT_EQ(errors, cache.failing().num_failed());
    }
  }
}

TEST_P(ExpertCacheTest, RecoversOnceTheDriveDoes) {
  ForEachCache([&](Cache& cache) {
    cache.failing().FailAll(true);
    for (const size_t layer : layers_) {
      ExpectError(ErrorCode::kRuntime, {"injected"}, [&] { cache.Take(layer, all_); });
    }
    cache->Request(layers_[0], Experts{});  // waits for the reads, so that none fails from here on
    cache.failing().FailAll(false);
    for (const size_t layer : layers_) cache.Take(layer, all_);
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExpertCacheTest,
                         testing::Combine(testing::Values(Architecture::kKimiK3,
                                                          Architecture::kKimiLinear),
                                          testing::Bool()),
                         [](const testing::TestParamInfo<Shape>& shape) {
                           return ArchitectureName(std::get<0>(shape.param)) +
                                  (std::get<1>(shape.param) ? "Shuffled" : "Instant");
                         });

// ---- what stays

class ExpertCachePolicyTest : public testing::Test {
 protected:
  const Checkpoint& checkpoint_ = SmallCheckpoint(Architecture::kKimiK3);
  const Experts all_ = AllExperts(checkpoint_);
  const std::vector<size_t> layers_ = checkpoint_.MoeLayers();
};

TEST_F(ExpertCachePolicyTest, KeepsNothingWithoutRoom) {
  Cache cache(checkpoint_, {4, 0});
  for (int round = 0; round < 3; ++round) EXPECT_EQ(cache.HitsOf(layers_[0], all_), 0U);
}

TEST_F(ExpertCachePolicyTest, KeepsEverythingWithRoomForAll) {
  Cache cache(checkpoint_, {1, layers_.size() * all_.size()});
  for (const size_t layer : layers_) EXPECT_EQ(cache.HitsOf(layer, all_), 0U);
  for (const size_t layer : layers_) EXPECT_EQ(cache.HitsOf(layer, all_), all_.size());
}

TEST_F(ExpertCachePolicyTest, SharesTheRoomEvenlyAmongLayersAndFillsIt) {
  for (size_t cached = 0; cached <= layers_.size() * all_.size(); ++cached) {
    for (const size_t window : {1, 3, 16}) {
      SCOPED_TRACE(testing::Message() << "cached " << cached << ", window " << window);
      Cache cache(checkpoint_, {window, cached});
      for (const size_t layer : layers_) cache.Take(layer, all_);
      for (size_t set = 0; set < layers_.size(); ++set) {
        const size_t share = cached / layers_.size() + (set < cached % layers_.size() ? 1 : 0);
        EXPECT_EQ(cache.HitsOf(layers_[set], all_), share);
      }
    }
  }
}

TEST_F(ExpertCachePolicyTest, KeepsTheExpertAskedForMoreOftenOverTheOneAskedForLast) {
  Cache cache(checkpoint_, {1, layers_.size()});  // one for each layer
  const size_t layer = layers_[0];
  for (int i = 0; i < 3; ++i) cache.Take(layer, {2});
  EXPECT_EQ(cache.HitsOf(layer, {5}), 0U);
  EXPECT_EQ(cache.HitsOf(layer, {6}), 0U);
  EXPECT_EQ(cache.HitsOf(layer, {2}), 1U);
}

TEST_F(ExpertCachePolicyTest, LetsGoOfWhatIsNoLongerAskedFor) {
  Cache cache(checkpoint_, {1, layers_.size()});
  const size_t layer = layers_[0];
  for (int i = 0; i < 10; ++i) cache.Take(layer, {2});
  for (int i = 0; i < 40; ++i) cache.Take(layer, {5});
  EXPECT_EQ(cache.HitsOf(layer, {5}), 1U);
  EXPECT_EQ(cache.HitsOf(layer, {2}), 0U);
}

// Also where the frequent ones are handed out first, while the others are on their way.
TEST_F(ExpertCachePolicyTest, KeepsTheFrequentHalfOfAMixedStream) {
  Cache cache(checkpoint_, {2, 2 * layers_.size()});
  const size_t layer = layers_[1];
  std::mt19937_64 random(9);
  const auto other = [&] { return static_cast<uint32_t>(2 + random() % (all_.size() - 2)); };
  for (int i = 0; i < 20; ++i) cache.Take(layer, {0, 1, other()});
  EXPECT_EQ(cache.HitsOf(layer, {0, 1, other()}), 2U);
}

TEST_F(ExpertCachePolicyTest, DoesNotLetOneLayerDriveOutAnothers) {
  Cache cache(checkpoint_, {2, 2 * layers_.size()});
  cache.Take(layers_[0], {3, 4});
  for (int i = 0; i < 50; ++i) {
    for (size_t set = 1; set < layers_.size(); ++set) cache.Take(layers_[set], all_);
  }
  EXPECT_EQ(cache.HitsOf(layers_[0], {3, 4}), 2U);
}

TEST_F(ExpertCachePolicyTest, NeverEvictsALease) {
  Cache cache(checkpoint_, {2, 0});
  cache->Request(layers_[0], Experts{1});
  {
    const Lease<ExpertView> held = cache->Next();
    cache.Take(layers_[1], all_);
    cache.Take(layers_[0], {0, 2, 3, 4, 5});
    EXPECT_EQ(held->expert, 1U);
    cache.ExpectEqualsFile(layers_[0], *held);
  }
  cache.Take(layers_[0], all_);
}

TEST_F(ExpertCachePolicyTest, GivesWhatIsThereBeforeWhatIsRead) {
  Cache cache(checkpoint_, {8, layers_.size()});
  cache.Take(layers_[0], {7});
  cache->Request(layers_[0], all_);
  EXPECT_EQ(cache->Next()->expert, 7U);
}

// ---- early

TEST_F(ExpertCachePolicyTest, AWideRequestBringsTheNextLayerEarly) {
  Cache cache(checkpoint_, {2 * all_.size(), 0});
  const uint64_t layer_bytes = all_.size() * checkpoint_.store().expert_bytes();
  EXPECT_EQ(cache.HitsOf(layers_[0], all_), 0U);
  EXPECT_EQ(cache->read_bytes(), 2 * layer_bytes);
  EXPECT_EQ(cache.HitsOf(layers_[1], {3, 5}), 0U) << "what came early was read all the same";
  EXPECT_EQ(cache->read_bytes(), 2 * layer_bytes);
  EXPECT_EQ(cache.HitsOf(layers_[1], {3, 5}), 0U) << "nothing stays without room for it";
}

TEST_F(ExpertCachePolicyTest, ANarrowRequestBringsNothingEarly) {
  Cache cache(checkpoint_, {2 * all_.size(), 0});
  const Experts few(all_.begin(), all_.begin() + static_cast<ptrdiff_t>(all_.size()) / 2 - 1);
  cache.Take(layers_[0], few);
  EXPECT_EQ(cache->read_bytes(), few.size() * checkpoint_.store().expert_bytes());
}

TEST_F(ExpertCachePolicyTest, EarlyReadsDriveNothingOut) {
  Cache cache(checkpoint_, {1, 2 * layers_.size()});
  for (const size_t layer : layers_) cache.Take(layer, {3, 4});
  cache.Take(layers_[0], all_);
  for (size_t i = 1; i < layers_.size(); ++i) EXPECT_EQ(cache.HitsOf(layers_[i], {3, 4}), 2U);
}

// ---- preload

TEST_F(ExpertCachePolicyTest, PreloadFillsWhatStays) {
  for (const size_t cached : {size_t{0}, size_t{5}, size_t{1000}}) {
    Cache cache(checkpoint_, {2, cached});
    uint64_t told = 0;
    cache->Preload([&](uint64_t bytes) { told += bytes; });
    EXPECT_EQ(told, cache->read_bytes());
    EXPECT_EQ(told, cache->CachedExpertBytes());
    uint64_t hits = 0;
    for (const size_t layer : layers_) hits += cache.HitsOf(layer, all_);
    EXPECT_EQ(hits * checkpoint_.store().expert_bytes(), told);
    EXPECT_EQ(cache->num_hits(), hits);
  }
}

TEST_F(ExpertCachePolicyTest, APreloadThatFailsIsReportedAndTheCacheSurvives) {
  Cache cache(checkpoint_, {2, 1000});
  cache.failing().FailAfter(3);
  ExpectError(ErrorCode::kRuntime, {"injected"}, [&] { cache->Preload([](uint64_t) {}); });
  for (const size_t layer : layers_) cache.Take(layer, all_);
}

// ---- memory

TEST_F(ExpertCachePolicyTest, ChargesSlotsAndTable) {
  const uint64_t slot = ExpertCache::SlotBytes(checkpoint_.config(), checkpoint_.store());
  EXPECT_GE(slot, checkpoint_.store().expert_bytes());
  EXPECT_LE(slot, checkpoint_.store().expert_bytes() + 2 * BlockReader::kAlignment);
  EXPECT_EQ(slot % BlockReader::kAlignment, 0U);
  Cache cache(checkpoint_, {3, 7});
  auto ledger = cache.budget().Ledger();
  EXPECT_EQ(ledger["expert slots"], 10 * (slot + ExpertCache::SlotTableBytes()));
  EXPECT_EQ(ledger["expert table"], ExpertCache::TableBytes(checkpoint_.config()));
  EXPECT_EQ(ledger.size(), 2U);
}

TEST_F(ExpertCachePolicyTest, NeedsAWindow) { EXPECT_THROW(Cache(checkpoint_, {0, 5}), Error); }

TEST(ExpertCache, NeedsNothingForAModelWithoutExperts) {
  CheckpointDims dims;
  dims.layers = 3;
  dims.dense_layers = 3;
  const Checkpoint checkpoint(CheckpointBuilder::KimiLinear(dims));
  Cache cache(checkpoint, {4, 10});
  EXPECT_EQ(cache.budget().used_bytes(), 0U);
}

}  // namespace
}  // namespace thimble
