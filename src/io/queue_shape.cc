#include "io/queue_shape.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/file.h"
#include "io/uring_reader.h"

namespace thimble {
namespace {

using Clock = std::chrono::steady_clock;

// From the gentlest on. Beyond 32 MiB in flight no single drive gains, and demanded reads wait.
constexpr std::array<QueueShape, 2> kShapes = {{{4, 4 * kMiB}, {8, 4 * kMiB}}};
constexpr size_t kSampleBytes = 32 * kMiB;
// Less than a sample: its halves are read to the same memory, since nobody looks at them.
static_assert(kSampleBytes % kMeasureBytes == 0);
// A sample of a drive below this rate would take a tenth of a second.
constexpr double kSlowBytesPerSecond = 200e6;
// After this long no further round begins.
constexpr std::chrono::milliseconds kPatience{20};
constexpr int kMaxRounds = 3;
// What a gentler shape may lose against the fastest.
constexpr double kNearEnough = 0.95;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Reads stretches at random places: what lies where a run before this one read may be held in a
// cache of the drive or of the host.
class Sampler {
 public:
  Sampler(const std::filesystem::path& file, std::span<std::byte> scratch)
      : file_(file), size_(File::Open(file).size()), scratch_(scratch) {
    THIMBLE_CHECK(size_ >= 2 * kSampleBytes && scratch.size() >= kMeasureBytes);
  }

  // Bytes a second of a stretch.
  double Rate(const QueueShape& shape, size_t bytes) {
    std::vector<File> files;
    if (auto file = File::OpenDirect(file_)) files.push_back(std::move(*file));
    const auto reader = files.empty() ? nullptr : TryNewUringReader(&files, shape);
    if (reader == nullptr) return 0;
    std::uniform_int_distribution<uint64_t> block(0, (size_ - bytes) / BlockReader::kAlignment);
    const uint64_t begin = block(random_) * BlockReader::kAlignment;
    ReadMonitor monitor;
    ReadBatch batch(monitor);
    const auto start = Clock::now();
    for (size_t done = 0; done < bytes; done += kMeasureBytes) {
      const size_t part = std::min(bytes - done, kMeasureBytes);
      const ReadRequest request = {
          .offset = begin + done, .bytes = part, .needed_bytes = part, .out = scratch_.data()};
      reader->Submit({&request, 1}, ReadPriority::kDemand, batch);
    }
    batch.Await();
    return static_cast<double>(bytes) / Seconds(Clock::now() - start);
  }

 private:
  const std::filesystem::path file_;
  const uint64_t size_;
  const std::span<std::byte> scratch_;
  std::mt19937_64 random_{std::random_device{}()};
};

}  // namespace

std::string FormatShape(const QueueShape& shape) {
  const bool whole = shape.piece_bytes % kMiB == 0;
  return std::to_string(shape.depth) + " x " +
         std::to_string(shape.piece_bytes / (whole ? kMiB : kKiB)) + (whole ? " MiB" : " KiB");
}

QueueShape MeasureShape(const std::filesystem::path& file, std::span<std::byte> scratch) {
  Sampler sampler(file, scratch);
  const QueueShape usual;
  if (sampler.Rate(usual, usual.piece_bytes) < kSlowBytesPerSecond) return usual;
  std::array<double, kShapes.size()> best = {};
  const auto start = Clock::now();
  // Round by round, since what else the machine does changes the rate from one moment to the next.
  for (int round = 0; round < kMaxRounds && Clock::now() - start < kPatience; ++round) {
    for (size_t i = 0; i < kShapes.size(); ++i) {
      best[i] = std::max(best[i], sampler.Rate(kShapes[i], kSampleBytes));
    }
  }
  const double fastest = *std::max_element(best.begin(), best.end());
  for (size_t i = 0; i < kShapes.size(); ++i) {
    if (best[i] >= kNearEnough * fastest) return kShapes[i];
  }
  return usual;
}

}  // namespace thimble
