// Speed of the kernels beside the limits of the machine, measured in the same run: each result is
// first verified against double precision, then timed. Memory-bound kernels report bytes per second
// and the share of the read bandwidth that a plain loop reaches with as many threads; products with
// many tokens report the share of the peak of fused multiply-adds.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "codec/coded_bf16.h"
#include "kernels/kernels.h"
#include "measure/machine_limits.h"

namespace thimble {
namespace {

// ---- the machine's limits

/// Runs work(0), ..., work(num_threads - 1), each on a thread of its own.
void InParallel(size_t num_threads, const std::function<void(size_t)>& work) {
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(work, i);
  work(0);
}

constexpr std::chrono::milliseconds kLimitTime{100};

/// Far beyond any cache.
constexpr size_t kReadBytes = size_t{384} << 20;

double ReadLimit(size_t num_threads) {
  static const std::vector<std::byte> memory(kReadBytes, std::byte{1});
  ThreadPool pool(num_threads);
  return ReadBandwidth(pool, memory, kLimitTime);
}

double FlopsLimit(size_t num_threads) {
  ThreadPool pool(num_threads);
  return PeakFlops(pool, kLimitTime);
}

// ---- products

struct Product {
  Product(WeightFormat format, size_t rows, size_t cols, size_t num_tokens)
      : w{format, rows, cols, nullptr, nullptr},
        tokens(num_tokens),
        x(num_tokens * cols),
        packed(num_tokens * PackedCols(cols)),
        y(num_tokens * rows) {
    format == WeightFormat::kCodedBF16 ? FillCoded() : FillWords();
    w.data = data.data();
    std::mt19937_64 random(2);
    if (format == WeightFormat::kMXFP4) {
      scales.resize(rows * cols / kMxGroup);
      for (uint8_t& scale : scales) scale = static_cast<uint8_t>(118 + random() % 8);
      w.scales = scales.data();
    }
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(random);
    for (size_t t = 0; t < tokens; ++t) {
      BestKernels().pack_activations(&x[t * cols], cols, &packed[t * PackedCols(cols)]);
    }
  }

  void FillWords() {
    data.resize(w.RowBytes() * w.rows);
    std::mt19937_64 random(1);
    for (size_t i = 0; i + 8 <= data.size(); i += 8) {
      // As BF16: sign and fraction random, exponents near that of 1/32.
      uint64_t word = random();
      if (w.format == WeightFormat::kBF16) {
        word = (word & 0x80ff80ff80ff80ffu) | 0x3d003d003d003d00u;
      }
      std::memcpy(&data[i], &word, 8);
    }
  }

  /// Normally distributed elements, whose exponents are as common as those of trained weights.
  void FillCoded() {
    constexpr size_t kGroupRows = 16;
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal(0.0f, 0.01f);
    std::vector<uint16_t> elements(kGroupRows * w.cols);
    for (size_t row = 0; row < w.rows; row += kGroupRows) {
      for (uint16_t& element : elements) {
        element = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
      }
      AppendCodedGroup(elements.data(), kGroupRows, w.cols, &data);
      group_ends.push_back(static_cast<uint32_t>(data.size()));
    }
    w.coded = {group_ends.data(), kGroupRows, w.rows};
  }

  size_t Bytes() const { return data.size() + scales.size(); }

  void Run(size_t num_threads) {
    const size_t share = w.rows / num_threads;
    InParallel(num_threads, [&](size_t i) {
      BestKernels().matmul({w.Rows(i * share, share), packed.data(), PackedCols(w.cols), tokens,
                            y.data() + i * share, w.rows});
    });
  }

  /// Compares a few outputs with double precision.
  void Verify() {
    Run(1);
    std::vector<float> row(w.cols);
    for (size_t r = 0; r < w.rows; r += w.rows / 5) {
      BestKernels().decode(w.Rows(r, 1), row.data());
      double sum = 0, norm = 0;
      const size_t token = tokens - 1;
      for (size_t c = 0; c < w.cols; ++c) {
        const double product = double{row[c]} * x[token * w.cols + c];
        sum += product;
        norm += std::abs(product);
      }
      const double error = std::abs(y[token * w.rows + r] - sum);
      if (!(error <= static_cast<double>(w.cols) * 0x1p-24 * norm)) {
        std::fprintf(stderr, "matmul is wrong in row %zu: off by %g\n", r, error);
        std::exit(1);
      }
    }
  }

  WeightMatrix w;
  size_t tokens;
  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
  std::vector<uint32_t> group_ends;
  std::vector<float> x, packed, y;
};

/// What each iteration did, as `unit` a second, beside what the machine can do of it.
void Report(benchmark::State& state, const char* unit, size_t amount, double limit) {
  const double done = static_cast<double>(amount) * static_cast<double>(state.iterations());
  state.counters[unit] = benchmark::Counter(done, benchmark::Counter::kIsRate);
  state.counters["limit"] = limit;
  state.counters["share"] = benchmark::Counter(done / limit, benchmark::Counter::kIsRate);
}

void ReportBandwidth(benchmark::State& state, size_t bytes, size_t num_threads) {
  Report(state, "bytes/s", bytes, ReadLimit(num_threads));
}

void ReportOperations(benchmark::State& state, size_t operations, size_t num_threads) {
  Report(state, "flop/s", operations, FlopsLimit(num_threads));
}

void MatVec(benchmark::State& state, WeightFormat format, size_t rows, size_t cols) {
  Product product(format, rows, cols, 1);
  product.Verify();
  const size_t num_threads = static_cast<size_t>(state.range(0));
  for (auto _ : state) product.Run(num_threads);
  ReportBandwidth(state, product.Bytes(), num_threads);
}

void MatMulTokens(benchmark::State& state, WeightFormat format, size_t rows, size_t cols) {
  Product product(format, rows, cols, static_cast<size_t>(state.range(1)));
  product.Verify();
  const size_t num_threads = static_cast<size_t>(state.range(0));
  for (auto _ : state) product.Run(num_threads);
  ReportOperations(state, 2 * rows * cols * product.tokens, num_threads);
}

// ---- token mixers

/// All heads of as many layers as exceed the caches; bytes count the state read and written.
void KdaStep(benchmark::State& state) {
  constexpr size_t kHeads = 96, kDim = 128, kLayers = 8;
  std::vector<float> states(kLayers * kHeads * kDim * kDim), inputs(4 * kDim, 0.1f), o(kDim);
  const size_t num_threads = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    InParallel(num_threads, [&](size_t thread) {
      std::vector<float> out(kDim);
      const size_t share = kLayers * kHeads / num_threads;
      for (size_t head = thread * share; head < (thread + 1) * share; ++head) {
        BestKernels().kda_step({&inputs[0], &inputs[kDim], &inputs[2 * kDim], &inputs[3 * kDim],
                                0.5f, kDim, &states[head * kDim * kDim], out.data()});
      }
    });
  }
  ReportBandwidth(state, 2 * states.size() * sizeof(float), num_threads);
}

/// Some heads over a context of 4096 positions.
void MlaAttend(benchmark::State& state) {
  constexpr size_t kPositions = 4096, kLatent = 512, kExtra = 64;
  const size_t num_heads = static_cast<size_t>(state.range(0));
  std::vector<float> cache(kPositions * (kLatent + kExtra), 0.01f);
  std::vector<float> q(num_heads * (kLatent + kExtra), 0.1f), context(num_heads * kLatent);
  for (auto _ : state) {
    BestKernels().mla_attend({.q = q.data(),
                              .num_tokens = 1,
                              .num_heads = num_heads,
                              .cache = cache.data(),
                              .num_positions = kPositions,
                              .shape = {LatentFormat::kF32, kLatent, kExtra},
                              .scale = 0.07f,
                              .context = context.data(),
                              .decoded = nullptr});
    benchmark::DoNotOptimize(context.data());
  }
  ReportOperations(state, 2 * num_heads * kPositions * (2 * kLatent + kExtra), 1);
}

void SituGlu(benchmark::State& state) {
  std::vector<float> gate(33792, 1.5f), up(33792, -2.0f), y(33792);
  for (auto _ : state) {
    BestKernels().situ_glu(gate.data(), up.data(), 4.0f, 25.0f, y.size(), y.data());
    benchmark::DoNotOptimize(y.data());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(y.size()));
}

#define THIMBLE_BENCHMARK(...) \
  BENCHMARK_CAPTURE(__VA_ARGS__)->UseRealTime()->Unit(benchmark::kMillisecond)

THIMBLE_BENCHMARK(MatVec, BF16_7168x12288, WeightFormat::kBF16, 7168, 12288)->Arg(1)->Arg(2);
THIMBLE_BENCHMARK(MatVec, BF16_12288x7168, WeightFormat::kBF16, 12288, 7168)->Arg(1)->Arg(2);
THIMBLE_BENCHMARK(MatVec, Coded_12288x7168, WeightFormat::kCodedBF16, 12288, 7168)->Arg(1)->Arg(2);
THIMBLE_BENCHMARK(MatVec, MXFP4_24576x12288, WeightFormat::kMXFP4, 24576, 12288)->Arg(1)->Arg(2);
THIMBLE_BENCHMARK(MatMulTokens, BF16_3072x7168, WeightFormat::kBF16, 3072, 7168)
    ->ArgsProduct({{1, 2}, {4, 16, 64, 256}});
THIMBLE_BENCHMARK(MatMulTokens, Coded_3072x7168, WeightFormat::kCodedBF16, 3072, 7168)
    ->ArgsProduct({{1, 2}, {4, 16, 64, 256}});
THIMBLE_BENCHMARK(MatMulTokens, MXFP4_3072x3584, WeightFormat::kMXFP4, 3072, 3584)
    ->ArgsProduct({{1, 2}, {4, 16, 64, 256}});
BENCHMARK(KdaStep)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(MlaAttend)->Arg(1)->Arg(24)->Arg(32)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(SituGlu)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace thimble

BENCHMARK_MAIN();
