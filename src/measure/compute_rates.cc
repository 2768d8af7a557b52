#include "measure/compute_rates.h"

#include "base/byte_size.h"
#include "measure/product_trial.h"

namespace thimble {
namespace {

// Rows as long as the trunk's, as many of them as fill more than a core's share of most caches.
constexpr size_t kCols = 4096;
constexpr uint64_t kWeightBytes = 64 * kMiB;
constexpr size_t kBatch = 32;  // tokens of a wide sweep
constexpr auto kMeasureTime = std::chrono::milliseconds(12);

WeightRate Measure(WeightFormat format, ThreadPool& pool) {
  MemoryBudget budget(256 * kMiB);
  const StoredMatrix matrix(format, kWeightBytes, kCols, budget);
  ProductTrial trial(matrix, kBatch, pool.num_threads(), budget);
  return {trial.BytesPerRow() * trial.RowsPerSecond(pool, 1, kMeasureTime),
          2.0 * kCols * kBatch * trial.RowsPerSecond(pool, kBatch, kMeasureTime)};
}

}  // namespace

MachineRates MeasureCompute(size_t num_threads) {
  ThreadPool pool(num_threads);
  MachineRates rates;
  rates.bf16 = Measure(WeightFormat::kBF16, pool);
  rates.mxfp4 = Measure(WeightFormat::kMXFP4, pool);
  return rates;
}

}  // namespace thimble
