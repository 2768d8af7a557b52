#include "measure/machine_limits.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/byte_size.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "measure/piece_rate.h"

namespace thimble {
namespace {

constexpr size_t kPieceBytes = 512 * kKiB;
constexpr size_t kChainSteps = size_t{1} << 15U;
constexpr uint64_t kMostBytes = kGiB;

}  // namespace

double ReadBandwidth(ThreadPool& pool, std::span<const std::byte> memory,
                     std::chrono::milliseconds time) {
  const Kernels& kernels = BestKernels();
  const size_t piece = std::min(kPieceBytes, memory.size());
  const size_t num_pieces = memory.size() / piece;
  std::atomic<uint32_t> sum = 0;  // a result that is used, so that the work is done
  const auto work = [&](size_t thread, size_t count) {
    const size_t first = thread * num_pieces / pool.num_threads();
    const auto* words = reinterpret_cast<const uint32_t*>(
        memory.subspan((first + count) % num_pieces * piece).data());
    sum.fetch_add(kernels.sum_words(words, piece / sizeof(uint32_t)), std::memory_order_relaxed);
  };
  return static_cast<double>(piece) * PiecesPerSecond(pool, time, work);
}

double PeakFlops(ThreadPool& pool, std::chrono::milliseconds time) {
  const Kernels& kernels = BestKernels();
  std::atomic<double> operations = 0;
  const double pieces = PiecesPerSecond(pool, time, [&](size_t, size_t) {
    float sum = 0;
    operations = kernels.multiply_add_chains(kChainSteps, &sum);
    THIMBLE_CHECK(std::isfinite(sum));
  });
  return operations * pieces;
}

uint64_t BeyondCaches() {
  const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  return std::clamp(cache > 0 ? 2 * static_cast<uint64_t>(cache) : 0, kLeastBeyondCaches,
                    kMostBytes);
}

}  // namespace thimble
