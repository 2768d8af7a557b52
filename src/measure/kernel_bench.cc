#include "measure/kernel_bench.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/byte_size.h"
#include "base/error.h"
#include "measure/mixer_trial.h"
#include "measure/product_trial.h"

namespace thimble {
namespace {

constexpr size_t kTokens[] = {4, 64, 512};
constexpr size_t kMostTokens = 512;
// As of small experts: a tile of such rows ends before memory has answered a request made in it.
constexpr size_t kShortCols = 1024;
// A thread's share of states must exceed the cache of its core, too.
constexpr uint64_t kStateBytesOfThread = 4 * kMiB;

struct NamedFormat {
  const char* name;
  WeightFormat format;
};
constexpr NamedFormat kFormats[] = {{"BF16", WeightFormat::kBF16},
                                    {"F32", WeightFormat::kF32},
                                    {"MXFP4", WeightFormat::kMXFP4},
                                    {"Q8", WeightFormat::kQ8},
                                    {"coded BF16", WeightFormat::kCodedBF16}};

class KernelBench {
 public:
  KernelBench(const KernelBenchOptions& options, MemoryBudget& budget, const MeasurementSink& sink)
      : options_(options), budget_(budget), sink_(sink) {
    pools_.push_back(std::make_unique<ThreadPool>(1));
    if (options.num_threads > 1) {
      pools_.push_back(std::make_unique<ThreadPool>(options.num_threads));
    }
  }

  void Products(const NamedFormat& format) {
    const StoredMatrix matrix(format.format, options_.bytes, kMeasuredCols, budget_);
    ProductTrial trial(matrix, kMostTokens, options_.num_threads, budget_);
    OneToken(std::string("matvec ") + format.name, matrix, trial);
    for (const size_t tokens : kTokens) {
      trial.Verify(tokens);
      const std::string name =
          std::string("matmul ") + format.name + ", " + std::to_string(tokens) + " tokens";
      ThreadPool& all = *pools_.back();
      Report(
          name, Unit::kFlops, all,
          [&] {
            return 2.0 * kMeasuredCols * static_cast<double>(tokens) *
                   trial.RowsPerSecond(all, tokens, options_.time);
          },
          [&] { return PeakFlops(all, options_.time); });
    }
  }

  void OneTokenOfShortRows(const NamedFormat& format) {
    const StoredMatrix matrix(format.format, options_.bytes, kShortCols, budget_);
    ProductTrial trial(matrix, 1, options_.num_threads, budget_);
    OneToken(std::string("matvec ") + format.name + ", short rows", matrix, trial);
  }

  void Mixers() {
    const uint64_t state_bytes =
        std::max(options_.bytes, options_.num_threads * kStateBytesOfThread);
    {
      KdaTrial kda(state_bytes, budget_);
      kda.Verify();
      OverMemory("KDA step", kda.memory(),
                 [&](ThreadPool& pool) { return kda.BytesPerSecond(pool, options_.time); });
    }
    MlaTrial mla(options_.bytes, budget_);
    mla.Verify();
    for (const auto& pool : pools_) {
      Report(
          "MLA attention", Unit::kFlops, *pool,
          [&] { return mla.FlopsPerSecond(*pool, options_.time); },
          [&] { return PeakFlops(*pool, options_.time); });
    }
  }

 private:
  void OneToken(const std::string& name, const StoredMatrix& matrix, ProductTrial& trial) {
    trial.Verify(1);
    OverMemory(name, matrix.memory(), [&](ThreadPool& pool) {
      return trial.BytesPerRow() * trial.RowsPerSecond(pool, 1, options_.time);
    });
  }

  template <typename Rate>
  void OverMemory(const std::string& name, std::span<const std::byte> memory, const Rate& rate) {
    for (const auto& pool : pools_) {
      Report(
          name, Unit::kBytes, *pool, [&] { return rate(*pool); },
          [&] { return ReadBandwidth(*pool, memory, options_.time); });
    }
  }

  // Limit and rate in turn, since what else the machine does changes from one moment to the next.
  template <typename Rate, typename Limit>
  void Report(const std::string& name, Unit unit, const ThreadPool& pool, const Rate& rate,
              const Limit& limit) {
    std::vector<double> rates;
    std::vector<double> limits;
    for (size_t round = 0; round < options_.rounds; ++round) {
      if (options_.go_on && !options_.go_on()) {
        throw Error(ErrorCode::kInterrupted, "stopped while kernels were measured");
      }
      limits.push_back(limit());
      rates.push_back(rate());
    }
    sink_({name, unit, pool.num_threads(), SpreadOf(rates), SpreadOf(limits).median});
  }

  const KernelBenchOptions& options_;
  MemoryBudget& budget_;
  const MeasurementSink& sink_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;  // of one thread, and of all
};

}  // namespace

uint64_t KernelBenchRestBytes(size_t num_threads) {
  return ProductTrial::BufferBytes(kMeasuredCols, kMostTokens, num_threads);
}

void BenchKernels(const KernelBenchOptions& options, MemoryBudget& budget,
                  const MeasurementSink& sink) {
  KernelBench bench(options, budget, sink);
  for (const NamedFormat& format : kFormats) {
    bench.Products(format);
    bench.OneTokenOfShortRows(format);
  }
  bench.Mixers();
}

}  // namespace thimble
