#pragma once

#include <string>
#include <vector>

#include "base/token_id.h"

namespace thimble::cli {

/// Reads token ids separated by commas or white space, with or without brackets. Appends them to
/// *ids and returns nothing, or returns the text at which it found no id.
std::string ParseIds(const std::string& text, std::vector<TokenId>* ids);

}  // namespace thimble::cli
