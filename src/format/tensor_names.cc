#include "format/tensor_names.h"

#include <charconv>
#include <optional>

#include "base/error.h"

namespace thimble {
namespace {

constexpr std::string_view kTextPrefix = "language_model.";
constexpr std::string_view kLayerPrefix = "model.layers.";
constexpr std::string_view kExpertPrefix = "block_sparse_moe.experts.";

size_t KindIndex(const LayerSpec& spec) {
  return (spec.mixer == MixerKind::kMla ? 2U : 0U) +
         (spec.feed_forward == FeedForwardKind::kMoe ? 1U : 0U);
}

bool Consume(std::string_view* text, std::string_view prefix) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// A number below `limit` and the dot after it.
std::optional<size_t> ConsumeNumber(std::string_view* text, size_t limit) {
  size_t number = 0;
  const char* first = text->data();
  const char* last = first + text->size();
  const auto [rest, error] = std::from_chars(first, last, number);
  if (error != std::errc() || number >= limit || rest == last || *rest != '.') return std::nullopt;
  if (*first == '0' && rest != first + 1) return std::nullopt;
  text->remove_prefix(static_cast<size_t>(rest - first) + 1);
  return number;
}

template <typename Spec>
const Spec* FindSpec(const std::vector<Spec>& specs, std::string_view name) {
  for (const Spec& spec : specs) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

template <typename Spec>
size_t IndexOf(const std::vector<Spec>& specs, const Spec* spec) {
  return static_cast<size_t>(spec - specs.data());
}

}  // namespace

TensorNames::TensorNames(const ModelConfig& config)
    : is_k3_(config.architecture == Architecture::kKimiK3),
      num_experts_(config.moe.num_experts),
      globals_(GlobalTensors(config)),
      pieces_(ExpertTensors(config)) {
  num_slots_ = globals_.size();
  for (const LayerSpec& spec : config.layers) {
    std::vector<TensorSpec>& specs = layer_specs_[KindIndex(spec)];
    if (specs.empty()) specs = LayerTensors(config, spec);
    const bool is_moe = spec.feed_forward == FeedForwardKind::kMoe;
    const size_t expert_slot = num_slots_ + specs.size();
    layers_.push_back({&specs, num_slots_, expert_slot, is_moe});
    num_slots_ = expert_slot + (is_moe ? num_experts_ * pieces_.size() : 0);
  }
}

TensorNames::Place TensorNames::Find(std::string_view name) const {
  if (is_k3_ && !Consume(&name, kTextPrefix)) {
    const bool vision = name.starts_with("vision_tower.") || name.starts_with("mm_projector.");
    return {.kind = vision ? Kind::kIgnored : Kind::kUnknown};
  }
  if (Consume(&name, kLayerPrefix)) {
    const std::optional<size_t> layer = ConsumeNumber(&name, layers_.size());
    return layer ? FindInLayer(*layer, name) : Place{};
  }
  const TensorSpec* spec = FindSpec(globals_, name);
  if (spec == nullptr) return {};
  return {.kind = Kind::kGlobal, .slot = IndexOf(globals_, spec), .spec = spec};
}

TensorNames::Place TensorNames::FindInLayer(size_t layer, std::string_view name) const {
  const LayerNames& names = layers_[layer];
  if (names.is_moe && Consume(&name, kExpertPrefix)) return FindExpert(layer, name);
  const TensorSpec* spec = FindSpec(*names.specs, name);
  if (spec == nullptr) return {};
  return {.kind = Kind::kLayer,
          .slot = names.trunk_slot + IndexOf(*names.specs, spec),
          .layer = layer,
          .spec = spec};
}

TensorNames::Place TensorNames::FindExpert(size_t layer, std::string_view name) const {
  const std::optional<size_t> expert = ConsumeNumber(&name, num_experts_);
  if (!expert) return {};
  const ExpertTensorSpec* piece = FindSpec(pieces_, name);
  if (piece == nullptr) return {};
  return {.kind = Kind::kExpert,
          .slot = layers_[layer].expert_slot + *expert * pieces_.size() + IndexOf(pieces_, piece),
          .layer = layer,
          .expert = *expert,
          .piece = piece};
}

std::string TensorNames::NameOf(size_t slot) const {
  THIMBLE_CHECK(slot < num_slots_);
  const std::string prefix(is_k3_ ? kTextPrefix : "");
  if (slot < globals_.size()) return prefix + std::string(globals_[slot].name);
  size_t layer = layers_.size() - 1;
  while (layers_[layer].trunk_slot > slot) --layer;
  const LayerNames& names = layers_[layer];
  const std::string in_layer = prefix + std::string(kLayerPrefix) + std::to_string(layer) + ".";
  if (slot < names.expert_slot) {
    return in_layer + std::string((*names.specs)[slot - names.trunk_slot].name);
  }
  const size_t piece = slot - names.expert_slot;
  return in_layer + std::string(kExpertPrefix) + std::to_string(piece / pieces_.size()) + "." +
         std::string(pieces_[piece % pieces_.size()].name);
}

}  // namespace thimble
