#include "outlook/planned_model.h"

#include <fmt/format.h>

#include <system_error>

#include "base/byte_size.h"
#include "base/error.h"
#include "engine/model_directory.h"
#include "format/container.h"
#include "format/model_summary.h"
#include "format/published_models.h"
#include "format/tensor_store.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"

namespace thimble {
namespace {

// What a probe reads into.
class Scratch {
 public:
  std::span<std::byte> bytes() { return {buffer_.data(), buffer_.bytes()}; }

 private:
  MemoryBudget budget_{kProbeScratchBytes};
  Buffer buffer_{budget_, "drive probe", kProbeScratchBytes};
};

// A model of which nothing is downloaded.
PlannedModel Unloaded(const std::string& name, const ModelConfig& config) {
  PlannedModel model;
  model.name = name;
  model.config = config;
  model.sizes = MeasureWeights(config, LayOutWeights(config));
  model.disk_bytes = Summarize(config).total_bytes;
  return model;
}

}  // namespace

bool AnyShard(const std::filesystem::path& dir) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    if (entry.path().extension() == ".safetensors") return true;
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw Error(
        error == std::errc::too_many_files_open ? ErrorCode::kRuntime : ErrorCode::kBadModel,
        fmt::format("cannot list {}: {}", dir.string(), error.message()));
  }
  return false;
}

bool AnyWeights(const std::filesystem::path& dir) { return IsContainer(dir) || AnyShard(dir); }

PlannedModel PlannedModel::FromDirectory(const std::filesystem::path& dir) {
  const ModelDirectory directory = ModelDirectory::Open(dir);
  if (!AnyWeights(dir)) return Unloaded(dir.string(), directory.config);
  PlannedModel model;
  model.name = dir.string();
  model.config = directory.config;
  const TensorStore store = TensorStore::Open(dir, model.config);
  model.sizes = MeasureWeights(model.config, store);
  for (const ShardFile& file : store.files()) model.files.push_back(file.path);
  model.lossy = store.lossy();
  model.is_packed = IsContainer(dir);
  if (model.is_packed) {
    model.shares_extents = OpenContainer(dir, model.config).manifest.shared_extents;
    for (const ShardFile& file : store.files()) model.disk_bytes += file.size;
  } else {
    model.disk_bytes = Summarize(model.config, store).total_bytes;
  }
  return model;
}

PlannedModel PlannedModel::Published(const std::string& name) {
  return Unloaded(name, ParseModelConfig(PublishedConfig(name), name));
}

PlanRequest PlannedModel::Request(const EngineOptions& options, uint64_t budget_bytes,
                                  size_t num_threads) const {
  PlanRequest request = MakePlanRequest(config, options, budget_bytes, num_threads);
  request.process_bytes += UnloadedBytes(config);
  return request;
}

DriveProbe MeasureDrive(const std::vector<std::filesystem::path>& files) {
  Scratch scratch;
  return ProbeDrive(files, scratch.bytes());
}

DriveProbe MeasureDriveOf(const std::filesystem::path& folder, uint64_t bytes) {
  Scratch scratch;
  return ProbeDriveOf(folder, bytes, scratch.bytes());
}

std::string FormatRate(double bytes_per_s) {
  return FormatBytes(static_cast<uint64_t>(bytes_per_s)) + "/s";
}

}  // namespace thimble
