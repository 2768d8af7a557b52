#include "pack/pack.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "format/checksum.h"
#include "format/container_check.h"
#include "format/model_config.h"
#include "format/model_files.h"
#include "format/published_models.h"
#include "format/tensor_store.h"
#include "io/file.h"
#include "pack/model_source.h"
#include "pack/quantizing_source.h"
#include "pack/verify.h"

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
std::string SourceFingerprint(const std::vector<SmallFile>& small_files, const TensorStore& store) {
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

// What a container stores once for several layers or experts stays so.
std::vector<LayerSharing> StoredSharing(const ContainerManifest& manifest) {
  const std::vector<ContainerLayer>& layers = manifest.layers;
  std::vector<LayerSharing> sharing;
  for (const ContainerLayer& layer : layers) {
    const auto same = std::ranges::find_if(layers, [&](const ContainerLayer& other) {
      return other.first_extent == layer.first_extent && other.first_expert == layer.first_expert &&
             other.distinct_experts == layer.distinct_experts;
    });
    sharing.push_back({.same_as = static_cast<size_t>(same - layers.begin()),
                       .distinct_experts = layer.distinct_experts});
  }
  return sharing;
}

// Symbolic links resolved, as far as the path exists.
std::filesystem::path Resolved(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path resolved = std::filesystem::weakly_canonical(path, error);
  return error ? std::filesystem::absolute(path).lexically_normal() : resolved;
}

void CheckOutside(const std::filesystem::path& model, const std::filesystem::path& directory) {
  const std::filesystem::path inner = Resolved(directory);
  const std::filesystem::path outer = Resolved(model);
  if (std::ranges::mismatch(outer, inner).in1 != outer.end()) return;
  throw Error(ErrorCode::kUsage, directory.string() + ": expected a directory outside the model " +
                                     model.string() +
                                     ", found one in it; choose another one with -o");
}

// What was quantised cannot be quantised again.
void CheckQuantizable(const std::filesystem::path& model, const ModelConfig& config,
                      const TensorStore& store, const WriteOptions& options) {
  const auto fail = [&](const char* expected_found) {
    throw Error(ErrorCode::kUsage, model.string() + ": expected " + expected_found);
  };
  if (options.mxfp4_experts && config.moe.format != WeightFormat::kBF16) {
    fail("BF16 experts to quantise, found experts that are MXFP4 already; leave --experts out");
  }
  if (options.q8_trunk && IsLossy(store.lossy(), kLossyTrunk)) {
    fail("a BF16 trunk to quantise, found one that is Q8 already; leave --trunk out");
  }
}

// Changes the configuration among the small files to one with MXFP4 experts, and reads it.
ModelConfig QuantizeExperts(const std::filesystem::path& model,
                            std::vector<SmallFile>* small_files) {
  const auto file = std::ranges::find(*small_files, kConfigFile, &SmallFile::name);
  THIMBLE_CHECK(file != small_files->end());  // the configuration came from it
  file->bytes = WithMxfp4Experts(file->bytes);
  return ParseModelConfig(file->bytes, (model / file->name).string());
}

// What is lossy in the source or becomes so, in one order.
std::vector<LossyPart> LossyParts(const TensorStore& store, const WriteOptions& options) {
  std::vector<LossyPart> parts = store.lossy();
  if (options.mxfp4_experts) {
    parts.push_back({std::string(kLossyExperts), std::string(kLossyMxfp4)});
  }
  if (options.q8_trunk) parts.push_back({std::string(kLossyTrunk), std::string(kLossyQ8)});
  std::ranges::sort(parts, {}, &LossyPart::part);
  return parts;
}

}  // namespace

PackResult PackModel(const std::filesystem::path& model,
                     const std::vector<std::filesystem::path>& directories,
                     const WriteOptions& options, PackObserver* observer) {
  THIMBLE_CHECK(!directories.empty());
  CheckModelDirectory(model);
  for (const std::filesystem::path& directory : directories) CheckOutside(model, directory);
  const ModelConfig config = ReadModelConfig(model);
  const TensorStore store = TensorStore::Open(model, config);
  CheckQuantizable(model, config, store, options);
  std::optional<ContainerCheck> check;
  if (IsContainer(model)) check = ContainerCheck::Open(model, config);
  std::vector<SmallFile> small_files = ReadSmallFiles(model);
  LayoutOptions layout_options;
  if (check) {
    layout_options.source = check->container().manifest.source;
    layout_options.sharing = StoredSharing(check->container().manifest);
  } else {
    layout_options.source = SourceFingerprint(small_files, store);
  }
  for (size_t i = 1; i < directories.size(); ++i) {
    layout_options.extra.push_back(std::filesystem::absolute(directories[i]).lexically_normal());
  }
  layout_options.stored = [&](size_t layer, const TensorSpec& spec) {
    return StoredAs(spec, layer == LayoutOptions::kNoLayer ? store.Global(spec.role)
                                                           : store.Layer(layer, spec.role));
  };
  layout_options.lossy = LossyParts(store, options);
  layout_options.q8_trunk = options.q8_trunk;
  layout_options.code = !options.raw;
  const ModelConfig stored = options.mxfp4_experts ? QuantizeExperts(model, &small_files) : config;
  ContainerLayout layout = LayOutContainer(stored, layout_options);
  // One that goes on was checked when it began.
  const bool is_new = !FileExists(directories[0] / kJournalFile) && !IsContainer(directories[0]);
  if (!check && is_new) CheckPublishedHashes(model, store, observer);
  ModelSource given(config, store, check ? &*check : nullptr);
  QuantizingSource source(stored, layout.manifest, options, given);
  return WriteContainer(directories[0], std::move(layout), small_files, source, options, observer);
}

}  // namespace thimble
