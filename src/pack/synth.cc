#include "pack/synth.h"

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/cpu_topology.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "format/checksum.h"
#include "format/model_config.h"
#include "format/model_files.h"
#include "format/model_summary.h"
#include "pack/weight_generator.h"

namespace thimble {
namespace {

// Kimi K3 pads A_log to a multiple of this many heads.
constexpr size_t kPaddedHeads = 128;

bool IsResidualProjection(TensorRole role) {
  return role == TensorRole::kAttnResProj || role == TensorRole::kMlpResProj ||
         role == TensorRole::kOutputResProj;
}

Distribution DistributionOf(const TensorSpec& spec) {
  using Kind = Distribution::Kind;
  if (spec.role == TensorRole::kALog) return {Kind::kLogRate, 0, 1};
  if (spec.role == TensorRole::kDtBias) return {Kind::kTimeStep, 0, 1};
  if (spec.role == TensorRole::kRouterBias) return {Kind::kNormal, 0, 0.02};
  const bool is_norm = spec.rows == 1 && !IsMatrix(spec.role) && !IsResidualProjection(spec.role);
  if (is_norm) return {Kind::kNormal, 1, 0.05};
  return {Kind::kNormal, 0, 1 / std::sqrt(static_cast<double>(spec.cols))};
}

// Layers of one kind take turns in repeating the first distinct_layers of them.
std::vector<LayerSharing> SynthSharing(const ModelConfig& config, const SynthOptions& synth) {
  std::array<std::vector<size_t>, 4> kinds;
  std::vector<LayerSharing> sharing;
  for (size_t layer = 0; layer < config.num_layers(); ++layer) {
    const LayerSpec& spec = config.layers[layer];
    std::vector<size_t>& same = kinds[(spec.mixer == MixerKind::kMla ? 2U : 0U) +
                                      (spec.feed_forward == FeedForwardKind::kMoe ? 1U : 0U)];
    same.push_back(layer);
    sharing.push_back(
        {.same_as = same[(same.size() - 1) % synth.distinct_layers.value_or(SIZE_MAX)],
         .distinct_experts = synth.distinct_experts.value_or(SIZE_MAX)});
  }
  return sharing;
}

class SynthSource : public ExtentSource {
 public:
  SynthSource(const ModelConfig& config, const ContainerManifest& manifest, uint64_t seed)
      : config_(config), manifest_(manifest), seed_(seed), pool_(UsablePhysicalCores()) {}

  void Read(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) override {
    if (use.kind == ExtentUse::Kind::kExpert) return ReadExpert(use, offset, out);
    const bool is_global = use.kind == ExtentUse::Kind::kGlobal;
    const TensorSpec spec = is_global
                                ? GlobalTensors(config_).at(use.item)
                                : LayerTensors(config_, config_.layers.at(use.layer)).at(use.item);
    const ContainerTensor& stored = is_global ? manifest_.globals[use.item].tensor
                                              : manifest_.layers[use.layer].tensors[use.item];
    const StreamKey key = {seed_, is_global ? ~uint64_t{0} : use.layer,
                           static_cast<uint64_t>(spec.role)};
    const uint64_t num_elements = uint64_t{spec.rows} * spec.cols;
    const size_t width = SizeOf(stored.dtype);
    const size_t skipped = offset % width;
    const auto fill = [&](std::span<std::byte> elements) {
      generator_.Fill(key, DistributionOf(spec), {stored.dtype, offset / width, num_elements},
                      elements);
    };
    if (skipped == 0 && out.size() % width == 0) return fill(out);
    // Coded tensors before this one make pieces begin and end within an element.
    whole_.resize(RoundUp(skipped + out.size(), width));
    fill(whole_);
    std::memcpy(out.data(), whole_.data() + skipped, out.size());
  }

 private:
  void ReadExpert(const ExtentUse& use, uint64_t offset, std::span<std::byte> out) {
    const std::vector<ExpertTensorSpec> pieces = ExpertTensors(config_);
    uint64_t start = 0;
    for (const ExpertTensor tensor : kStoredExpertOrder) {
      const ExpertTensorSpec& piece = pieces.at(static_cast<size_t>(tensor));
      const uint64_t end = start + piece.Bytes();
      if (offset < end && !out.empty()) {
        const auto part = out.first(std::min<uint64_t>(out.size(), end - offset));
        FillPiece(use, piece, offset - start, part);
        out = out.subspan(part.size());
        offset += part.size();
      }
      start = end;
    }
  }

  void FillPiece(const ExtentUse& use, const ExpertTensorSpec& piece, uint64_t first,
                 std::span<std::byte> out) {
    const bool is_down =
        piece.tensor == ExpertTensor::kDown || piece.tensor == ExpertTensor::kDownScales;
    const size_t inputs = is_down ? config_.moe.inner_size : config_.ExpertWidth();
    const double deviation = 1 / std::sqrt(static_cast<double>(inputs));
    // Codes and scales of a matrix are drawn from one stream.
    const auto matrix = static_cast<uint64_t>(piece.tensor) / 2;
    const uint64_t tensor =
        static_cast<uint64_t>(TensorRole::kCount) + uint64_t{4} * use.item + matrix;
    const StreamKey key = {seed_, use.layer, tensor};
    const bool is_codes = static_cast<size_t>(piece.tensor) % 2 == 0;
    is_codes ? generator_.FillCodes(key, deviation, first, out)
             : generator_.FillScales(key, deviation, first, out);
  }

  const ModelConfig& config_;
  const ContainerManifest manifest_;
  uint64_t seed_;
  ThreadPool pool_;
  WeightGenerator generator_{pool_};
  std::vector<std::byte> whole_;  // elements of a piece that cuts some
};

}  // namespace

PackResult SynthesizeModel(const SynthOptions& synth, const std::filesystem::path& dir,
                           const WriteOptions& options, PackObserver* observer) {
  if (synth.distinct_layers == size_t{0} || synth.distinct_experts == size_t{0}) {
    throw Error(ErrorCode::kUsage, "expected at least one distinct layer and expert, found 0");
  }
  ShapeOverrides shape = synth.shape;
  shape.mxfp4_experts = true;  // as 4-bit conversions of Kimi-Linear have them: a third of the disk
  const std::string config_text = PublishedConfig(synth.architecture, shape);
  const ModelConfig config = ParseModelConfig(config_text, kConfigFile);
  LayoutOptions layout_options;
  layout_options.source = "synthetic " + synth.architecture + " seed " +
                          std::to_string(synth.seed) + " " +
                          FormatChecksum(ChecksumOf(config_text));
  layout_options.sharing = SynthSharing(config, synth);
  layout_options.stored = [&](size_t, const TensorSpec& spec) {
    const bool is_padded =
        spec.role == TensorRole::kALog && config.architecture == Architecture::kKimiK3;
    return ContainerTensor{std::string(spec.name), PublishedType(config, spec.role), spec.rows,
                           is_padded ? RoundUp(spec.cols, kPaddedHeads) : spec.cols};
  };
  layout_options.code = !options.raw;
  ContainerLayout layout = LayOutContainer(config, layout_options);
  SynthSource source(config, layout.manifest, synth.seed);
  return WriteContainer(dir, std::move(layout), {{kConfigFile, config_text}}, source, options,
                        observer);
}

}  // namespace thimble
