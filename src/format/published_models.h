#pragma once

#include <string_view>
#include <vector>

namespace thimble {

/// The configurations of published models, so that one can plan for them before any download.

/// The text of config.json of the model `name`, cut to the fields that ParseModelConfig reads.
/// Empty where no such model is known.
std::string_view PublishedConfig(std::string_view name);

/// The names that PublishedConfig knows.
std::vector<std::string_view> PublishedNames();

}  // namespace thimble
