#include "pack/pack.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/error.h"
#include "format/checksum.h"
#include "format/model_config.h"
#include "format/model_files.h"
#include "format/published_models.h"
#include "format/tensor_store.h"
#include "io/file.h"
#include "pack/quantizing_source.h"
#include "pack/snapshot_source.h"

namespace thimble {
namespace {

// What is worth having beside the weights; only config.json must be there.
constexpr std::array kSmallFiles = {
    kConfigFile,           kGenerationConfigFile, "tiktoken.model", "tokenizer_config.json",
    "chat_template.jinja", "README.md",           "LICENSE"};
constexpr uint64_t kMaxSmallFileBytes = uint64_t{64} << 20;
constexpr uint64_t kSampleBytes = uint64_t{64} << 10;

std::vector<SmallFile> ReadSmallFiles(const std::filesystem::path& model) {
  std::vector<SmallFile> files;
  for (const char* name : kSmallFiles) {
    if (!FileExists(model / name)) continue;
    files.push_back({name, ReadTextFile(model / name, kMaxSmallFileBytes)});
  }
  return files;
}

// Tells models apart without reading them: configuration, names and sizes of the shards, and of
// each the start (its header), a part from the middle and the end.
std::string FingerprintOf(const std::vector<SmallFile>& small_files, const TensorStore& store) {
  Checksum checksum;
  const auto add = [&](std::string_view text) { checksum.Update(text.data(), text.size()); };
  for (const SmallFile& file : small_files) {
    if (file.name == kConfigFile) add(file.bytes);
  }
  std::string sample;
  for (const ShardFile& shard : store.files()) {
    add(shard.path.filename().string() + " " + std::to_string(shard.size) + "\n");
    const File file = File::Open(shard.path);
    sample.resize(std::min(shard.size, kSampleBytes));
    for (const uint64_t at :
         {uint64_t{0}, (shard.size - sample.size()) / 2, shard.size - sample.size()}) {
      file.ReadAt(at, sample.size(), sample.data());
      add(sample);
    }
  }
  return FormatChecksum(checksum.Digest());
}

ContainerTensor StoredAs(const TensorSpec& spec, const TensorExtent& extent) {
  return {std::string(spec.name), extent.dtype, extent.rows, extent.cols};
}

// Changes the configuration among the small files to one with MXFP4 experts, and reads it.
ModelConfig QuantizeExperts(const std::filesystem::path& model, const ModelConfig& config,
                            std::vector<SmallFile>* small_files) {
  if (config.moe.format != WeightFormat::kBF16) {
    throw Error(ErrorCode::kUsage, model.string() +
                                       ": expected BF16 experts to quantise, found experts that "
                                       "are MXFP4 already; leave --experts out");
  }
  const auto file = std::ranges::find(*small_files, kConfigFile, &SmallFile::name);
  THIMBLE_CHECK(file != small_files->end());  // the configuration came from it
  file->bytes = WithMxfp4Experts(file->bytes);
  return ParseModelConfig(file->bytes, (model / file->name).string());
}

}  // namespace

PackResult PackModel(const std::filesystem::path& model,
                     const std::vector<std::filesystem::path>& directories,
                     const WriteOptions& options, PackObserver* observer) {
  THIMBLE_CHECK(!directories.empty());
  CheckModelDirectory(model);
  if (IsContainer(model)) {
    throw Error(ErrorCode::kUsage, model.string() +
                                       " is a packed container already; expected a model as "
                                       "downloaded");
  }
  const ModelConfig config = ReadModelConfig(model);
  const TensorStore store = TensorStore::Open(model, config);
  std::vector<SmallFile> small_files = ReadSmallFiles(model);
  LayoutOptions layout_options;
  layout_options.source = FingerprintOf(small_files, store);
  for (size_t i = 1; i < directories.size(); ++i) {
    layout_options.extra.push_back(std::filesystem::absolute(directories[i]).lexically_normal());
  }
  layout_options.stored = [&](size_t layer, const TensorSpec& spec) {
    return StoredAs(spec, layer == LayoutOptions::kNoLayer ? store.Global(spec.role)
                                                           : store.Layer(layer, spec.role));
  };
  layout_options.code = !options.raw;
  ModelConfig stored = config;
  if (options.mxfp4_experts) {
    stored = QuantizeExperts(model, config, &small_files);
    layout_options.lossy = {{std::string(kLossyExperts), std::string(kLossyMxfp4)}};
  }
  if (options.q8_trunk) {
    layout_options.lossy.push_back({std::string(kLossyTrunk), std::string(kLossyQ8)});
  }
  layout_options.q8_trunk = options.q8_trunk;
  ContainerLayout layout = LayOutContainer(stored, layout_options);
  SnapshotSource snapshot(config, store);
  QuantizingSource source(stored, layout.manifest, snapshot);
  return WriteContainer(directories[0], std::move(layout), small_files, source, options, observer);
}

}  // namespace thimble
