#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <thread>
#include <vector>

#include "base/byte_size.h"
#include "measure/compute_rates.h"
#include "measure/drive_bench.h"
#include "measure/kernel_bench.h"
#include "measure/mixer_trial.h"
#include "measure/piece_rate.h"
#include "measure/product_trial.h"
#include "measure/sweep_bench.h"
#include "support/checkpoint_builder.h"
#include "support/expect_error.h"
#include "support/fixed_process.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using std::chrono::milliseconds;

constexpr WeightFormat kAllFormats[] = {WeightFormat::kBF16, WeightFormat::kF32,
                                        WeightFormat::kMXFP4, WeightFormat::kQ8,
                                        WeightFormat::kCodedBF16};

TEST(SpreadTest, IsMedianLeastAndMost) {
  const Spread odd = SpreadOf({5, 1, 3});
  EXPECT_EQ(odd.median, 3);
  EXPECT_EQ(odd.least, 1);
  EXPECT_EQ(odd.most, 5);
  EXPECT_EQ(odd.rounds, 3U);
  EXPECT_EQ(SpreadOf({4, 1, 2, 8}).median, 3);
  EXPECT_EQ(SpreadOf({7}).median, 7);
}

TEST(PieceRateTest, EveryThreadWorksAndCounts) {
  ThreadPool pool(3);
  std::atomic<size_t> done[3] = {};
  const double rate = PiecesPerSecond(pool, milliseconds(5), [&](size_t thread, size_t count) {
    EXPECT_EQ(count, done[thread].load());
    ++done[thread];
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  });
  for (const auto& pieces : done) EXPECT_GE(pieces, 1U);
  EXPECT_GT(rate, 0);
  EXPECT_LE(rate, 3 / 200e-6);  // a sleep is never shorter
}

// ---- what is timed

TEST(StoredMatrixTest, HoldsItsValuesInEveryFormat) {
  constexpr size_t kCols = 256;
  for (const WeightFormat format : kAllFormats) {
    MemoryBudget budget(kMiB);
    const StoredMatrix matrix(format, 100000, kCols, budget);
    EXPECT_LE(matrix.memory().size(), 100000U);
    EXPECT_GT(matrix.memory().size(), 75000U);
    EXPECT_EQ(matrix.view().rows % StoredMatrix::kTileRows, 0U);
    std::vector<float> decoded(matrix.view().rows * kCols);
    BestKernels().decode(matrix.view(), decoded.data());
    double norm = 0;
    for (size_t i = 0; i < decoded.size(); ++i) {
      ASSERT_EQ(decoded[i], matrix.Row(i / kCols)[i % kCols]) << i;
      norm += std::abs(decoded[i]);
    }
    EXPECT_GT(norm, 0);
  }
}

TEST(ProductTrialTest, TellsAWrongProduct) {
  MemoryBudget budget(16 * kMiB);
  for (const WeightFormat format : kAllFormats) {
    const StoredMatrix matrix(format, 300000, 512, budget);
    ProductTrial trial(matrix, 6, 2, budget);
    for (const size_t tokens : {1, 4, 6}) trial.Verify(tokens);
    // A byte in the last tile that is not what the values say: in MXFP4 a scale.
    auto* last = const_cast<std::byte*>(&matrix.memory().back());
    *last ^= format == WeightFormat::kMXFP4 ? std::byte{4} : std::byte{0x40};
    if (format == WeightFormat::kCodedBF16) continue;  // its last byte may be an unused exponent
    ExpectError(ErrorCode::kRuntime, {"product of row", "expected", "found"},
                [&] { trial.Verify(1); });
  }
}

TEST(MixerTrialTest, AgreesWithDoublePrecisionAgainAndAgain) {
  MemoryBudget budget(32 * kMiB);
  KdaTrial kda(kMiB, budget);
  MlaTrial mla(3 * kMiB, budget);
  ThreadPool pool(2);
  for (int i = 0; i < 3; ++i) {
    kda.Verify();
    EXPECT_GT(kda.BytesPerSecond(pool, milliseconds(1)), 0);
    mla.Verify();
    EXPECT_GT(mla.FlopsPerSecond(pool, milliseconds(1)), 0);
  }
}

TEST(ComputeRatesTest, MeasuresTheFormatsThatItIsAskedFor) {
  const std::vector<WeightFormat> formats = {WeightFormat::kBF16, WeightFormat::kMXFP4,
                                             WeightFormat::kQ8, WeightFormat::kCodedBF16};
  for (const size_t num_threads : {1, 3}) {
    const MachineRates rates = MeasureCompute(formats, num_threads);
    for (const WeightFormat format : formats) {
      EXPECT_GT(rates.Of(format).bytes_per_s, 1e6);
      EXPECT_GT(rates.Of(format).flops, 1e6);
    }
    EXPECT_EQ(rates.Of(WeightFormat::kF32).flops, 0);
    EXPECT_EQ(rates.drive_bytes_per_s, 0);
  }
}

// ---- benchmarks

void ExpectSound(const Measurement& one, size_t rounds) {
  SCOPED_TRACE(one.name);
  EXPECT_EQ(one.rate.rounds, rounds);
  EXPECT_GT(one.rate.least, 0);
  EXPECT_LE(one.rate.least, one.rate.median);
  EXPECT_LE(one.rate.median, one.rate.most);
}

TEST(KernelBenchTest, MeasuresEachKernelBesideALimit) {
  KernelBenchOptions options;
  options.num_threads = 2;
  options.bytes = 2 * kMiB;
  options.rounds = 2;
  options.time = milliseconds(1);
  MemoryBudget budget(256 * kMiB);
  std::vector<Measurement> all;
  BenchKernels(options, budget, [&](const Measurement& one) { all.push_back(one); });
  // Each format on one thread and on two with long and with short rows, and with three numbers of
  // tokens; each mixer on one and two.
  EXPECT_EQ(all.size(), 5U * (2 * 2 + 3) + 2 * 2);
  for (const Measurement& one : all) {
    ExpectSound(one, 2);
    ASSERT_TRUE(one.limit.has_value());
    EXPECT_GT(one.Share().value(), 0);
  }
  EXPECT_EQ(budget.used_bytes(), 0U);
}

TEST(DriveBenchTest, ReadsWhatIsThereOrSaysWhyNot) {
  const TempDir dir;
  DriveBenchOptions options;
  for (const char* name : {"one", "two"}) {
    options.files.push_back(dir / name);
    std::ofstream file(dir / name, std::ios::binary);
    for (size_t i = 0; i < 3'000'000; ++i) file.write(reinterpret_cast<const char*>(&i), sizeof(i));
  }
  options.random_bytes = 1'000'001;
  options.rounds = 2;
  options.time = milliseconds(10);
  MemoryBudget budget(128 * kMiB);
  std::vector<Measurement> all;
  const DriveBenchReport report =
      BenchDrive(options, budget, [&](const Measurement& one) { all.push_back(one); });
  EXPECT_FALSE(report.reader.empty());
  EXPECT_EQ(all.size(), report.obstacle.empty() ? 2U : 0U) << report.obstacle;
  for (const Measurement& one : all) ExpectSound(one, 2);
  EXPECT_EQ(budget.used_bytes(), 0U);
}

TEST(SweepBenchTest, SaysWhatATokenCost) {
  const TempDir dir;
  CheckpointBuilder::KimiK3().Write(dir.path());
  const ModelDirectory model = ModelDirectory::Open(dir.path());
  EngineOptions options;
  options.memory_bytes = 512 * kMiB;
  options.process = kFixedProcess;
  options.num_threads = 2;
  options.context = SweepBenchContext(model.config);
  const auto engine = Engine::Open(model, options);
  for (const SweepMeasurement& one :
       {BenchPrefill(*engine, nullptr), BenchDecode(*engine, nullptr)}) {
    ExpectSound(one.speed, one.speed.rate.rounds);
    EXPECT_FALSE(one.speed.limit.has_value());
    EXPECT_GE(one.num_tokens, 2U);
    EXPECT_LT(one.num_tokens, options.context + 1);
    EXPECT_GT(one.read_bytes, 0);  // of the embedding at least
    EXPECT_NEAR(one.io_bound_share + one.compute_bound_share, 1, 1e-9);
  }
}

}  // namespace
}  // namespace thimble
