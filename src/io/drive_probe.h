#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace thimble {

/// What a measurement of a drive found.
struct DriveProbe {
  /// Bytes a second of large direct reads, several in flight. Absent where the page cache could
  /// not be kept out of it: such a figure would be memory's, not the drive's.
  std::optional<double> bytes_per_s;
  uint64_t read_bytes = 0;
  double seconds = 0;
  std::string obstacle;    // why there is no figure; empty where there is one
  bool too_small = false;  // the obstacle is that the files hold less than kLeastProbeBytes
};

/// Memory that a probe reads into.
inline constexpr size_t kProbeReads = 4;  // in flight
inline constexpr size_t kProbeReadBytes = size_t{4} << 20;
inline constexpr size_t kProbeScratchBytes = kProbeReads * kProbeReadBytes;

/// The least that is worth measuring by.
inline constexpr uint64_t kLeastProbeBytes = uint64_t{16} << 20;

/// Reads from `files`, spread over all they hold, past the page cache (O_DIRECT) for a second or
/// until each part was read once. `scratch` has kProbeScratchBytes, aligned to 4096. Says in
/// `obstacle` where the files hold less than kLeastProbeBytes, where the file system keeps its
/// files in memory or takes no O_DIRECT, and where, in spite of it, the kernel kept the reads in
/// its page cache or the drive delivered less than was read (DeviceWatch). Error(kBadModel) where a
/// file cannot be opened, Error(kRuntime) where a read fails.
DriveProbe ProbeDrive(const std::vector<std::filesystem::path>& files,
                      std::span<std::byte> scratch);

/// A file to measure a drive by, which has no name from the start: it is gone when this is
/// destroyed or the process ends, however it ends.
class ProbeFile {
 public:
  /// Empty, in `folder`. Error(kRuntime) where it cannot be made.
  explicit ProbeFile(std::filesystem::path folder);
  ~ProbeFile();
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

  /// Whether its file system keeps it in memory, and it says nothing about a drive.
  bool LivesInMemory() const;
  /// Writes `bytes` of random content, rounded up to whole reads of a probe, to the drive and out
  /// of the page cache. `scratch` has kProbeReadBytes. Error(kRuntime) where that cannot be done,
  /// Error(kInterrupted) once `go_on`, asked before each piece, says no.
  void Fill(uint64_t bytes, std::span<std::byte> scratch,
            const std::function<bool()>& go_on = nullptr);
  /// By which this process can open it.
  std::filesystem::path path() const;

 private:
  std::filesystem::path folder_;
  int descriptor_;
};

/// Measures the drive of `folder` by a ProbeFile of `bytes`. Error(kRuntime) where it cannot be
/// written.
DriveProbe ProbeDriveOf(const std::filesystem::path& folder, uint64_t bytes,
                        std::span<std::byte> scratch);

}  // namespace thimble
