#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

/// The one place that knows the shapes of published models, for synthetic weights and for tests
/// that have no download.
///
///   kimi-k3          the full model: 93 layers, 896 experts
///   kimi-linear-48b  27 layers, 256 experts
///   k3-small         the parts of Kimi K3 at about 60 MB, for quick tests
std::vector<std::string> PublishedModelNames();

/// Departures from a published shape.
struct ShapeOverrides {
  std::optional<size_t> layers;   // the pattern goes on or is cut; the last is MLA all the same
  std::optional<size_t> experts;  // of a MoE layer; bounds the experts of a token, too
  bool mxfp4_experts = false;     // in models that are published with BF16 experts, too
};

/// The text of config.json, as ParseModelConfig reads it. Error(kUsage) for an unknown name, naming
/// the known ones, and for overrides that make no model.
std::string PublishedConfig(std::string_view name, const ShapeOverrides& overrides = {});

/// The text of a config.json, changed to say that its experts are MXFP4, as conversions of models
/// that are published with BF16 experts say it. Other fields stay. Error(kBadModel) where it is no
/// JSON object.
std::string WithMxfp4Experts(const std::string& config_json);

}  // namespace thimble
