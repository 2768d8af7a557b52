#include "cli/planned_model.h"

#include "base/byte_size.h"
#include "engine/model_directory.h"
#include "format/model_summary.h"
#include "format/published_models.h"
#include "format/tensor_store.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"

namespace thimble::cli {
namespace {

// What a probe reads into.
class Scratch {
 public:
  std::span<std::byte> bytes() { return {buffer_.data(), buffer_.bytes()}; }

 private:
  MemoryBudget budget_{kProbeScratchBytes};
  Buffer buffer_{budget_, "drive probe", kProbeScratchBytes};
};

}  // namespace

bool AnyShard(const std::filesystem::path& dir) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    if (entry.path().extension() == ".safetensors") return true;
  }
  return false;
}

PlannedModel PlannedModel::FromDirectory(const std::filesystem::path& dir) {
  PlannedModel model;
  const ModelDirectory directory = ModelDirectory::Open(dir);
  model.name = dir.string();
  model.config = directory.config;
  if (AnyShard(dir)) {
    const TensorStore store = TensorStore::Open(dir, model.config);
    model.sizes = MeasureWeights(model.config, store);
    model.disk_bytes = Summarize(model.config, store).total_bytes;
    for (const ShardFile& file : store.files()) model.shards.push_back(file.path);
  } else {
    model.sizes = MeasureWeights(model.config, LayOutWeights(model.config));
    model.disk_bytes = Summarize(model.config).total_bytes;
    model.unloaded_bytes = UnloadedBytes(model.config);
  }
  return model;
}

PlannedModel PlannedModel::Published(const std::string& name) {
  PlannedModel model;
  model.name = name;
  model.config = ParseModelConfig(PublishedConfig(name), name);
  model.sizes = MeasureWeights(model.config, LayOutWeights(model.config));
  model.disk_bytes = Summarize(model.config).total_bytes;
  model.unloaded_bytes = UnloadedBytes(model.config);
  return model;
}

PlanRequest PlannedModel::Request(const EngineOptions& options, uint64_t budget_bytes,
                                  size_t num_threads) const {
  PlanRequest request = MakePlanRequest(config, options, budget_bytes, num_threads);
  request.process_bytes += unloaded_bytes;
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

}  // namespace thimble::cli
