#include "measure/compute_rates.h"

#include "base/byte_size.h"
#include "measure/product_trial.h"

namespace thimble {
namespace {

// More than a core's share of most caches.
constexpr uint64_t kWeightBytes = 64 * kMiB;
constexpr size_t kBatch = 32;  // tokens of a wide sweep
constexpr auto kMeasureTime = std::chrono::milliseconds(12);

WeightRate Measure(WeightFormat format, ThreadPool& pool) {
  MemoryBudget budget(256 * kMiB);
  const StoredMatrix matrix(format, kWeightBytes, kMeasuredCols, budget);
  ProductTrial trial(matrix, kBatch, pool.num_threads(), budget);
  return {trial.BytesPerRow() * trial.RowsPerSecond(pool, 1, kMeasureTime),
          2.0 * kMeasuredCols * kBatch * trial.RowsPerSecond(pool, kBatch, kMeasureTime)};
}

}  // namespace

MachineRates MeasureCompute(std::span<const WeightFormat> formats, size_t num_threads) {
  ThreadPool pool(num_threads);
  MachineRates rates;
  for (const WeightFormat format : formats) rates.Of(format) = Measure(format, pool);
  return rates;
}

}  // namespace thimble
