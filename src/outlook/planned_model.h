#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner.h"
#include "io/drive_probe.h"

namespace thimble {

/// A model that a plan is made for: one on disk, or one that has not been downloaded.
struct PlannedModel {
  std::string name;
  ModelConfig config;
  WeightSizes sizes;
  uint64_t disk_bytes = 0;                   // of its text model, as stored or as published
  std::vector<std::filesystem::path> files;  // that hold its weights; none: not downloaded
  bool is_packed = false;
  std::vector<LossyPart> lossy;  // what was quantised when it was packed
  bool shares_extents = false;   // synthetic: some layers or experts are stored once for several

  /// The model in `dir`, as downloaded or packed, loaded as an engine would, without its weights.
  /// Where no weights are there, its sizes are those of an ideal checkpoint. Error(kBadModel).
  static PlannedModel FromDirectory(const std::filesystem::path& dir);
  /// A published architecture by its name. Error(kUsage) where it is unknown.
  static PlannedModel Published(const std::string& name);

  /// What PlanMemory is asked for an engine with `options`: the process as large as it is now, and
  /// what opening the model will add.
  PlanRequest Request(const EngineOptions& options, uint64_t budget_bytes,
                      size_t num_threads) const;
};

/// Whether `dir` holds any shard.
bool AnyShard(const std::filesystem::path& dir);
/// Whether it holds weights: shards, or a packed container.
bool AnyWeights(const std::filesystem::path& dir);

/// Measures the drive by the files given, or, where none are, by a file of `bytes` in `folder`. The
/// memory it takes is given back.
DriveProbe MeasureDrive(const std::vector<std::filesystem::path>& files);
DriveProbe MeasureDriveOf(const std::filesystem::path& folder, uint64_t bytes);

/// "3.50 GB/s".
std::string FormatRate(double bytes_per_s);

}  // namespace thimble
