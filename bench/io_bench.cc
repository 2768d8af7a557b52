// Speed of the readers on files far larger than any cache of the drive, beside what the drive gives
// to the plainest program: one thread that reads the same blocks in a row with pread(2) and
// O_DIRECT.
//
// Usage: io_bench [DIRECTORY] [GIB] [ROUNDS]
//
// Writes files of GIB GiB together (2) into DIRECTORY (the temporary one), reads them ROUNDS (7)
// times in each way, the ways in turn since drives change their rate from minute to minute, and
// removes them. What is read is verified once, before anything is timed. Page caches cannot flatter
// the figures: everything is O_DIRECT, or dropped from the cache before, and the run fails where
// the kernel has fetched less from the drive than a way claims to have read.

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/byte_size.h"
#include "io/file.h"
#include "io/file_reader.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"

namespace thimble {
namespace {

// As TrunkStream has them.
constexpr size_t kBlockBytes = 32 * kMiB;
constexpr size_t kRingSlots = 4;
constexpr size_t kNumFiles = 2;

// Memory as the engine has it.
MemoryBudget& Budget() {
  static MemoryBudget budget(kGiB);
  return budget;
}

// ---- files whose every word tells its place

uint64_t WordAt(uint64_t file, uint64_t index) {
  uint64_t word = (index + (file << 48)) * 0x9e3779b97f4a7c15U;
  word = (word ^ (word >> 29)) * 0xbf58476d1ce4e5b9U;
  return word ^ (word >> 32);
}

class Files {
 public:
  Files(const std::filesystem::path& directory, uint64_t bytes) {
    const uint64_t free = std::filesystem::space(directory).available;
    if (free < bytes + bytes / 4 + kGiB) {
      throw std::runtime_error(directory.string() + " has " + FormatBytes(free) +
                               " free, expected " + FormatBytes(bytes + bytes / 4 + kGiB) +
                               "; name another directory, or fewer GiB");
    }
    std::string pattern = (directory / "io-bench-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
    directory_ = pattern;
    blocks_per_file_ = bytes / kNumFiles / kBlockBytes;
    Buffer block(Budget(), "block", kBlockBytes);
    for (size_t file = 0; file < kNumFiles; ++file) Write(file, block.data());
  }
  ~Files() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  const std::vector<std::filesystem::path>& paths() const { return paths_; }
  size_t num_blocks() const { return blocks_per_file_ * kNumFiles; }
  uint64_t bytes() const { return num_blocks() * kBlockBytes; }
  ReadRequest BlockAt(size_t block, std::byte* out) const {
    return {.file = static_cast<uint32_t>(block / blocks_per_file_),
            .offset = block % blocks_per_file_ * kBlockBytes,
            .bytes = kBlockBytes,
            .needed_bytes = kBlockBytes,
            .out = out};
  }

  void Verify(size_t block, const std::byte* data) const {
    const ReadRequest place = BlockAt(block, nullptr);
    for (size_t i = 0; i < kBlockBytes / 8; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, data + 8 * i, 8);
      if (word == WordAt(place.file, place.offset / 8 + i)) continue;
      throw std::runtime_error("wrong data in " + paths_[place.file].string() + " at byte " +
                               std::to_string(place.offset + 8 * i));
    }
  }

  void DropFromCache() const {
    for (const auto& path : paths_) {
      const File file = File::Open(path);
      if (::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED) != 0) {
        throw std::runtime_error("cannot drop " + path.string() + " from the page cache");
      }
    }
  }

 private:
  void Write(size_t file, std::byte* block) {
    paths_.push_back(directory_ / ("weights" + std::to_string(file)));
    const int descriptor = ::open(paths_.back().c_str(), O_WRONLY | O_CREAT | O_DIRECT, 0600);
    if (descriptor < 0) {
      throw std::runtime_error(directory_.string() + " takes no direct writes: " +
                               std::strerror(errno) + "; name a directory on the drive itself");
    }
    for (size_t i = 0; i < blocks_per_file_; ++i) {
      for (size_t word = 0; word < kBlockBytes / 8; ++word) {
        const uint64_t value = WordAt(file, i * (kBlockBytes / 8) + word);
        std::memcpy(block + 8 * word, &value, 8);
      }
      if (::pwrite(descriptor, block, kBlockBytes, static_cast<off_t>(i * kBlockBytes)) !=
          static_cast<ssize_t>(kBlockBytes)) {
        ::close(descriptor);
        throw std::runtime_error("cannot write " + paths_.back().string());
      }
    }
    ::fsync(descriptor);
    ::close(descriptor);
  }

  std::filesystem::path directory_;
  std::vector<std::filesystem::path> paths_;
  size_t blocks_per_file_ = 0;
};

// ---- the ways

using OnBlock = std::function<void(size_t block, const std::byte* data)>;

struct Way {
  std::string name;
  std::function<void(const OnBlock&)> read_all;
};

Way PlainReads(const Files& files) {
  return {"plain pread, direct", [&files](const OnBlock& on_block) {
            std::vector<File> opened;
            for (const auto& path : files.paths()) {
              opened.push_back(File::OpenDirect(path).value());
            }
            static Buffer memory(Budget(), "block", kBlockBytes);
            for (size_t block = 0; block < files.num_blocks(); ++block) {
              const ReadRequest read = files.BlockAt(block, memory.data());
              opened[read.file].ReadAt(read.offset, read.bytes, read.out);
              on_block(block, read.out);
            }
          }};
}

// Blocks in reading order through a ring of slots, as the trunk is read.
void ReadThroughRing(FileReader& reader, const Files& files, const OnBlock& on_block) {
  static Buffer memory(Budget(), "ring", kRingSlots * kBlockBytes);
  ReadMonitor monitor;
  std::deque<ReadBatch> batches;
  for (size_t i = 0; i < kRingSlots; ++i) batches.emplace_back(monitor);
  const auto slot_of = [&](size_t block) {
    return memory.data() + block % kRingSlots * kBlockBytes;
  };
  const auto submit = [&](size_t block) {
    if (block >= files.num_blocks()) return;
    const ReadRequest read = files.BlockAt(block, slot_of(block));
    reader.Submit({&read, 1}, ReadPriority::kAhead, batches[block % kRingSlots]);
  };
  for (size_t block = 0; block < kRingSlots; ++block) submit(block);
  for (size_t block = 0; block < files.num_blocks(); ++block) {
    batches[block % kRingSlots].Await();
    on_block(block, slot_of(block));
    submit(block + kRingSlots);
  }
}

Way RingReads(const Files& files, ReadMode mode) {
  const std::shared_ptr<FileReader> reader = OpenReader(files.paths(), mode);
  return {reader->Describe(),
          [&files, reader](const OnBlock& on_block) { ReadThroughRing(*reader, files, on_block); }};
}

// ---- measuring

// What the kernel has fetched from drives for this process.
uint64_t FetchedBytes() {
  std::ifstream file("/proc/self/io");
  for (std::string name, value; file >> name >> value;) {
    if (name == "read_bytes:") return std::stoull(value);
  }
  throw std::runtime_error("/proc/self/io does not say what was read from drives");
}

double CpuSeconds() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Sample {
  double gb_per_second;
  double cpu_seconds_per_gb;
};

Sample Measure(const Way& way, const Files& files) {
  files.DropFromCache();
  const uint64_t fetched = FetchedBytes();
  const double cpu = CpuSeconds();
  const auto start = std::chrono::steady_clock::now();
  way.read_all([](size_t, const std::byte*) {});
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double gb = static_cast<double>(files.bytes()) / 1e9;
  if (FetchedBytes() - fetched < files.bytes()) {
    throw std::runtime_error(way.name + " read " + FormatBytes(files.bytes()) +
                             ", but the drive gave only " + FormatBytes(FetchedBytes() - fetched) +
                             ": a cache was measured");
  }
  return {gb / seconds, (CpuSeconds() - cpu) / gb};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void Report(const Way& way, const std::vector<Sample>& samples, const std::vector<Sample>& plain) {
  std::vector<double> rates;
  std::vector<double> ratios;  // each to the plain reads of its own round
  std::vector<double> cpu;
  for (size_t i = 0; i < samples.size(); ++i) {
    rates.push_back(samples[i].gb_per_second);
    ratios.push_back(samples[i].gb_per_second / plain[i].gb_per_second);
    cpu.push_back(samples[i].cpu_seconds_per_gb);
  }
  std::printf("%-42s %5.2f GB/s (%.2f to %.2f), %3.0f %% of plain, %.0f ms CPU a GB\n",
              way.name.c_str(), Median(rates), *std::min_element(rates.begin(), rates.end()),
              *std::max_element(rates.begin(), rates.end()), 100 * Median(ratios),
              1e3 * Median(cpu));
}

void Run(const std::filesystem::path& directory, uint64_t bytes, size_t rounds) {
  const Files files(directory, bytes);
  const std::array<Way, 3> ways = {PlainReads(files), RingReads(files, ReadMode::kDirect),
                                   RingReads(files, ReadMode::kBuffered)};
  for (const Way& way : ways) {
    way.read_all([&](size_t block, const std::byte* data) { files.Verify(block, data); });
  }
  std::printf("%s in blocks of %zu MiB, medians of %zu rounds (least to most)\n",
              FormatBytes(files.bytes()).c_str(), kBlockBytes / kMiB, rounds);
  std::array<std::vector<Sample>, ways.size()> samples;
  for (size_t round = 0; round < rounds; ++round) {
    // Another one begins each time.
    for (size_t i = 0; i < ways.size(); ++i) {
      const size_t way = (i + round) % ways.size();
      samples[way].push_back(Measure(ways[way], files));
    }
  }
  for (size_t i = 0; i < ways.size(); ++i) Report(ways[i], samples[i], samples[0]);
}

}  // namespace
}  // namespace thimble

int main(int argc, char** argv) {
  try {
    const std::filesystem::path directory =
        argc > 1 ? std::filesystem::path(argv[1]) : std::filesystem::temp_directory_path();
    const uint64_t gib = argc > 2 ? std::stoull(argv[2]) : 2;
    const size_t rounds = argc > 3 ? std::stoull(argv[3]) : 7;
    if (argc > 4 || gib == 0 || gib > 1024 || rounds == 0) {
      std::fprintf(stderr, "usage: io_bench [DIRECTORY] [GIB] [ROUNDS]\n");
      return 2;
    }
    thimble::Run(directory, gib * thimble::kGiB, rounds);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "io_bench: %s\n", error.what());
    return 1;
  }
}
