#include "measure/piece_rate.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

namespace thimble {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxPieces = 1024;

double MedianSeconds(size_t thread, std::chrono::milliseconds time, const PieceWork& work) {
  std::array<double, kMaxPieces> seconds;
  size_t count = 0;
  const auto end = Clock::now() + time;
  do {
    const auto start = Clock::now();
    work(thread, count);
    seconds[count++] = std::chrono::duration<double>(Clock::now() - start).count();
  } while (count < kMaxPieces && Clock::now() < end);
  double* const middle = seconds.data() + count / 2;
  std::nth_element(seconds.data(), middle, seconds.data() + count);
  return *middle;
}

}  // namespace

double PiecesPerSecond(ThreadPool& pool, std::chrono::milliseconds time, const PieceWork& work) {
  std::vector<double> rates(pool.num_threads(), 0);
  pool.ParallelFor(rates.size(), 1, [&](const Range& range) {
    for (size_t i = range.first; i < range.last; ++i) rates[i] = 1 / MedianSeconds(i, time, work);
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

}  // namespace thimble
