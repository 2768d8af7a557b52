#include "engine/planner.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/byte_size.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"
#include "memory/process_memory.h"

namespace thimble {
namespace {

using Clock = std::chrono::steady_clock;

// What the process may still grow by outside the budget: pages of code not yet touched, stacks,
// buffers of the standard library.
uint64_t GrowthBytes(size_t num_threads) { return 6 * kMiB + num_threads * 256 * kKiB; }

// Rows as long as the trunk's, as many of them as fill more than a core's share of most caches.
constexpr size_t kCols = 4096;
constexpr uint64_t kWeightBytes = 64 * kMiB;
constexpr size_t kBatch = 32;  // tokens of a wide sweep
constexpr size_t kPieceRows = 64;
constexpr size_t kMaxPieces = 1024;
constexpr auto kMeasureTime = std::chrono::milliseconds(12);

// Weights and activations to multiply, all finite, of no particular value.
class Trial {
 public:
  explicit Trial(size_t num_threads)
      : pool_(num_threads),
        budget_(256 * kMiB),
        weights_(budget_, "trial weights", kWeightBytes),
        activations_(budget_, "trial activations",
                     (kBatch * kCols + num_threads * kBatch * kPieceRows) * sizeof(float)),
        inputs_(reinterpret_cast<float*>(activations_.data())),
        outputs_(inputs_ + kBatch * kCols) {
    // As BF16 0x3c3c is about 0.01, as MXFP4 codes and scales it is finite too.
    std::memset(weights_.data(), 0x3c, weights_.bytes());
  }

  WeightRate Measure(WeightFormat format) {
    WeightMatrix matrix = {format, 0, kCols, Bytes(0), nullptr};
    size_t row_bytes = matrix.RowBytes();
    if (format == WeightFormat::kMXFP4) row_bytes += kCols / kMxGroup;
    matrix.rows = kWeightBytes / row_bytes / kPieceRows * kPieceRows;
    if (format == WeightFormat::kMXFP4) matrix.scales = Bytes(matrix.rows * matrix.RowBytes());
    return {static_cast<double>(row_bytes) * RowsPerSecond(matrix, 1),
            2.0 * kCols * kBatch * RowsPerSecond(matrix, kBatch)};
  }

 private:
  const uint8_t* Bytes(uint64_t offset) const {
    return reinterpret_cast<const uint8_t*>(weights_.data()) + offset;
  }

  // Rows that all threads together multiply in a second. Each thread times small pieces and goes by
  // their median: whatever else runs on the machine interrupts only a few of them.
  double RowsPerSecond(const WeightMatrix& matrix, size_t num_tokens) {
    std::vector<double> rates(pool_.num_threads(), 0);
    pool_.ParallelFor(rates.size(), 1, [&](const Range& range) {
      for (size_t i = range.first; i < range.last; ++i) {
        rates[i] = kPieceRows / MedianSeconds(matrix, i, num_tokens);
      }
    });
    return std::accumulate(rates.begin(), rates.end(), 0.0);
  }

  // Of the pieces that one thread multiplies, round and round, until the time is up.
  double MedianSeconds(const WeightMatrix& matrix, size_t thread, size_t num_tokens) const {
    const size_t num_pieces = matrix.rows / kPieceRows;
    const size_t first_piece = thread * num_pieces / pool_.num_threads();
    std::array<double, kMaxPieces> seconds;
    size_t count = 0;
    const auto end = Clock::now() + kMeasureTime;
    do {
      const auto start = Clock::now();
      kernels_.matmul(
          {.w = matrix.Rows((first_piece + count) % num_pieces * kPieceRows, kPieceRows),
           .x = inputs_,
           .x_stride = kCols,
           .num_tokens = num_tokens,
           .y = outputs_ + thread * kBatch * kPieceRows,
           .y_stride = kPieceRows});
      seconds[count++] = std::chrono::duration<double>(Clock::now() - start).count();
    } while (count < kMaxPieces && Clock::now() < end);
    std::nth_element(seconds.begin(), seconds.begin() + count / 2, seconds.begin() + count);
    return seconds[count / 2];
  }

  const Kernels& kernels_ = BestKernels();
  ThreadPool pool_;
  MemoryBudget budget_;
  Buffer weights_;
  Buffer activations_;
  float* inputs_;   // [kBatch, kCols]
  float* outputs_;  // [thread][kBatch, kPieceRows]
};

}  // namespace

uint64_t DefaultMemoryBudget() {
  const uint64_t free = AvailableMemory() + ReadProcessMemory().rss_bytes;
  const uint64_t reserve = std::max(free / 8, std::min(free / 2, 512 * kMiB));
  return free - reserve;
}

PlanRequest MakePlanRequest(const ModelConfig& config, const EngineOptions& options,
                            uint64_t budget_bytes, size_t num_threads) {
  const ProcessMemory process = ReadProcessMemory();
  PlanRequest request;
  request.budget_bytes = budget_bytes;
  request.process_bytes = std::max(process.rss_bytes, process.peak_rss_bytes) +
                          GrowthBytes(num_threads + FileReader::kMaxThreads);
  request.process_bytes += options.program_bytes;
  request.sampler_bytes = Sampler::ScratchBytes(config.vocab_size);
  request.context = options.context;
  request.num_sessions = options.num_sessions;
  request.snapshot_bytes = options.snapshot_bytes;
  request.num_threads = num_threads;
  request.prefill_chunk = options.prefill_chunk;
  request.all_logits = options.all_logits;
  request.latents = options.latents;
  return request;
}

uint64_t UnloadedBytes(const ModelConfig& config) {
  // Its text, and its places in the tokenizer's tables.
  constexpr uint64_t kTokenBytes = 48;
  // Its places, and what opening a checkpoint or a container takes for a moment.
  constexpr uint64_t kExpertBytes = sizeof(uint64_t) * kExpertTensors + 96;
  uint64_t experts = 0;
  for (const LayerSpec& spec : config.layers) {
    if (spec.feed_forward == FeedForwardKind::kMoe) experts += config.moe.num_experts;
  }
  return config.vocab_size * kTokenBytes + experts * kExpertBytes;
}

MachineRates MeasureCompute(size_t num_threads) {
  Trial trial(num_threads);
  MachineRates rates;
  rates.bf16 = trial.Measure(WeightFormat::kBF16);
  rates.mxfp4 = trial.Measure(WeightFormat::kMXFP4);
  return rates;
}

}  // namespace thimble
