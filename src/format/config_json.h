#pragma once

#include <string>
#include <string_view>

#include "json/json_fields.h"
#include "json/json_value.h"

namespace thimble {

/// Parses a configuration file: one JSON object, nested at most kMaxFileDepth deep, no key twice.
/// Error(kBadModel) names `source` and what was found.
JsonValue ParseConfigJson(std::string_view text, const std::string& source);

}  // namespace thimble
