#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "format/container.h"
#include "io/disk_file.h"
#include "pack/container_layout.h"
#include "pack/weight_loss.h"

namespace thimble {

/// Where the bytes of a container come from.
class ExtentSource {
 public:
  virtual ~ExtentSource() = default;
  /// Fills `out` with the bytes of an extent from `offset` on, before any coding, which lie inside
  /// it; of an expert in the order of kStoredExpertOrder. Called from one thread, each extent front
  /// to back.
  virtual void Read(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) = 0;
  /// What quantising cost in the extent that is being read, so far; zero where nothing is
  /// quantised.
  virtual WeightLoss Loss() const { return {}; }
};

/// Told of long work as it goes on.
class PackObserver {
 public:
  virtual ~PackObserver() = default;
  /// `done` of `total` bytes, of which `skipped` were there before this run. False stops the work.
  virtual bool OnProgress(uint64_t done, uint64_t total, uint64_t skipped) = 0;
};

/// A file that lies beside the manifest: config.json, the tokenizer.
struct SmallFile {
  std::string name;
  std::string bytes;
};

struct WriteOptions {
  /// Stores every tensor plain, and the scales of experts, none coded. What lays the container out
  /// looks at it.
  bool raw = false;
  /// Quantises BF16 experts to MXFP4, which changes the logits. What lays the container out looks
  /// at it.
  bool mxfp4_experts = false;
  /// Quantises the large BF16 matrices of the trunk to eight bits, likewise.
  bool q8_trunk = false;
  /// Bytes moved at a time, a multiple of 4096: with what the source holds, the memory that writing
  /// takes.
  size_t chunk_bytes = size_t{16} << 20;
  /// Bytes between two times that everything is brought to the drive and noted in the journal: what
  /// a kill costs at most.
  uint64_t sync_bytes = uint64_t{512} << 20;
  std::function<uint64_t(const std::filesystem::path&)> free_disk_bytes = FreeDiskBytes;
  /// For tests: called after every step that changes what is on disk.
  std::function<void()> on_step;
};

enum class WriteOutcome : uint8_t { kWritten, kAlreadyThere };

/// What quantising cost in one layer, in the output head, or over all.
struct LayerLoss {
  std::string name;  // "layer 5", "output head", "in all"
  WeightLoss trunk;
  WeightLoss experts;
};

/// What a pack or synth has made, or found made.
struct PackResult {
  WriteOutcome outcome = WriteOutcome::kWritten;
  uint64_t bytes = 0;        // of all data files
  uint64_t plain_bytes = 0;  // the same, were nothing coded
  size_t files = 0;
  /// Of a container that was written lossy: each layer that was quantised, the output head
  /// if it was, then all.
  std::vector<LayerLoss> losses;
};

/// Writes a container into `dir` (made where it does not exist), in memory that does not depend on
/// its size. Every data file is written beside its place, brought to the drive, read back, compared
/// with the checksums of what was to be written, and only then moved to its place; the manifest
/// comes last. Killed at any instant, the same call goes on where it stopped, and the result is the
/// same to the byte. A container that is complete already is left as it is.
///
/// Error(kUsage) before anything is written where `dir` holds something else; Error(kRuntime)
/// before anything is written where a drive has too little room, and later where a write fails or
/// reads back differently; Error(kInterrupted) where the observer says so. `observer` may be null.
PackResult WriteContainer(const std::filesystem::path& dir, ContainerLayout layout,
                          const std::vector<SmallFile>& small_files, ExtentSource& source,
                          const WriteOptions& options, PackObserver* observer);

}  // namespace thimble
