#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "format/lossy_part.h"

namespace thimble::cli {

/// A line for each part of a model that was quantised when it was packed, saying so plainly; empty
/// for an exact model.
std::string LossyText(const std::vector<LossyPart>& parts);

/// The same for programs: a list of {part, format, relative_error}.
nlohmann::ordered_json LossyJson(const std::vector<LossyPart>& parts);

}  // namespace thimble::cli
