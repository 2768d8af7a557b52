#include "measure/drive_bench.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

#include "base/byte_size.h"
#include "base/checked_math.h"
#include "base/error.h"
#include "io/device_reads.h"
#include "io/drive_probe.h"
#include "io/file.h"
#include "io/file_reader.h"
#include "memory/buffer.h"

namespace thimble {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSlots = 4;  // reads asked for at once, as the trunk's ring has
constexpr uint64_t kBlockBytes = 8 * kMiB;
constexpr size_t kChecks = 6;

struct Place {
  uint32_t file;
  uint64_t offset;
};

struct DriveRate {
  double bytes_per_s;
  std::string obstacle;  // why it is not the drive's; empty where it is
};

class DriveBench {
 public:
  DriveBench(const DriveBenchOptions& options, FileReader& reader, MemoryBudget& budget)
      : options_(options),
        reader_(reader),
        random_bytes_(RoundUp<uint64_t>(options.random_bytes, BlockReader::kAlignment)),
        buffer_(budget, "reads to measure by", kSlots * SlotBytes()) {
    for (const auto& path : options.files) files_.push_back(File::Open(path));
    for (size_t i = 0; i < kSlots; ++i) slots_.emplace_back(monitor_);
  }
  // After a read that failed others may still be on their way.
  ~DriveBench() {
    monitor_.Await([this] {
      return std::all_of(slots_.begin(), slots_.end(), [](const ReadBatch& b) { return b.done(); });
    });
  }
  DriveBench(const DriveBench&) = delete;
  DriveBench& operator=(const DriveBench&) = delete;

  // Reads at random places, beside plain buffered ones.
  void Verify() {
    std::vector<std::byte> plain(kPageBytes * 16);
    for (size_t i = 0; i < kChecks; ++i) {
      const Place place = RandomPlace(random_bytes_);
      Start(0, place, random_bytes_);
      slots_[0].Await();
      const uint64_t there = Available(place, random_bytes_);
      for (uint64_t at = 0; at < there; at += plain.size()) {
        const size_t count = std::min<uint64_t>(plain.size(), there - at);
        files_[place.file].ReadAt(place.offset + at, count, plain.data());
        if (std::memcmp(plain.data(), Memory(0) + at, count) == 0) continue;
        throw Error(ErrorCode::kRuntime,
                    files_[place.file].path().string() + " near byte " +
                        std::to_string(place.offset + at) + ": " + reader_.Describe() +
                        " brought other bytes than a plain read; check the drive, and please "
                        "report this");
      }
    }
  }

  // Bytes a second of reads one after the other, from where the last call ended.
  DriveRate Sequential(std::chrono::milliseconds time) {
    return Rate(time, kBlockBytes, [&] {
      if (next_.offset >= files_[next_.file].size()) {
        next_ = {static_cast<uint32_t>((next_.file + 1) % files_.size()), 0};
      }
      const Place place = next_;
      next_.offset += kBlockBytes;
      return place;
    });
  }
  DriveRate Random(std::chrono::milliseconds time) {
    return Rate(time, random_bytes_, [&] { return RandomPlace(random_bytes_); });
  }

 private:
  uint64_t SlotBytes() const { return std::max(kBlockBytes, random_bytes_); }
  std::byte* Memory(size_t slot) { return buffer_.data() + slot * SlotBytes(); }
  uint64_t Available(const Place& place, uint64_t bytes) const {
    return std::min(bytes, files_[place.file].size() - place.offset);
  }

  Place RandomPlace(uint64_t bytes) {
    const auto file = static_cast<uint32_t>(random_() % files_.size());
    const uint64_t size = files_[file].size();
    const uint64_t last = size > bytes ? size - bytes : 0;
    return {file, random_() % (last / BlockReader::kAlignment + 1) * BlockReader::kAlignment};
  }

  // Returns the bytes that will come.
  uint64_t Start(size_t slot, const Place& place, uint64_t bytes) {
    ThrowIfStopped();
    const uint64_t needed = Available(place, bytes);
    const ReadRequest request = {.file = place.file,
                                 .offset = place.offset,
                                 .bytes = RoundUp<uint64_t>(needed, BlockReader::kAlignment),
                                 .needed_bytes = needed,
                                 .out = Memory(slot)};
    reader_.Submit({&request, 1}, ReadPriority::kAhead, slots_[slot]);
    return needed;
  }

  // All slots have a read under way until the time is over; what was started then counts, too.
  template <typename NextPlace>
  DriveRate Rate(std::chrono::milliseconds time, uint64_t bytes, const NextPlace& next_place) {
    const DeviceWatch watch;
    const auto start = Clock::now();
    uint64_t sum = 0;
    for (size_t i = 0; i < kSlots; ++i) sum += Start(i, next_place(), bytes);
    for (size_t i = 0; Clock::now() - start < time; i = (i + 1) % kSlots) {
      slots_[i].Await();
      sum += Start(i, next_place(), bytes);
    }
    for (ReadBatch& slot : slots_) slot.Await();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return {static_cast<double>(sum) / seconds, watch.Obstacle(sum)};
  }

  void ThrowIfStopped() const {
    if (options_.go_on && !options_.go_on()) {
      throw Error(ErrorCode::kInterrupted, "stopped while the drive was measured");
    }
  }

  const DriveBenchOptions& options_;
  FileReader& reader_;
  const uint64_t random_bytes_;
  Buffer buffer_;
  ReadMonitor monitor_;
  std::vector<File> files_;
  std::deque<ReadBatch> slots_;
  std::mt19937_64 random_{std::random_device{}()};
  Place next_ = {0, 0};
};

}  // namespace

DriveBenchReport BenchDrive(const DriveBenchOptions& options, MemoryBudget& budget,
                            const MeasurementSink& sink) {
  Buffer scratch(budget, "drive probe", kProbeScratchBytes);
  const std::span<std::byte> scratch_bytes(scratch.data(), scratch.bytes());
  const auto reader = OpenReader(options.files, ReadMode::kDirect);
  DriveBench bench(options, *reader, budget);
  bench.Verify();
  std::vector<double> limits;
  std::vector<double> sequential;
  std::vector<double> random;
  for (size_t round = 0; round < options.rounds; ++round) {
    const DriveProbe probe = ProbeDrive(options.files, scratch_bytes);
    if (!probe.bytes_per_s) return {reader->Describe(), probe.obstacle};
    limits.push_back(*probe.bytes_per_s);
    const DriveRate in_order = bench.Sequential(options.time);
    const DriveRate anywhere = bench.Random(options.time);
    for (const DriveRate& rate : {in_order, anywhere}) {
      if (!rate.obstacle.empty()) return {reader->Describe(), rate.obstacle};
    }
    sequential.push_back(in_order.bytes_per_s);
    random.push_back(anywhere.bytes_per_s);
  }
  const double limit = SpreadOf(limits).median;
  sink({"sequential reads", Unit::kBytes, 1, SpreadOf(sequential), limit});
  sink({"reads of an expert's " + FormatBytes(options.random_bytes), Unit::kBytes, 1,
        SpreadOf(random), limit});
  return {reader->Describe(), {}};
}

}  // namespace thimble
