#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

/// A part of a container that was quantised when it was packed, so that the container's logits are
/// not those of its source.
struct LossyPart {
  std::string part;          // "experts" or "trunk"
  std::string format;        // "mxfp4" or "q8"
  float relative_error = 0;  // root mean square of what was lost over that of the weights
};

/// Whether `part` is among `parts`.
inline bool IsLossy(const std::vector<LossyPart>& parts, std::string_view part) {
  return std::ranges::any_of(parts, [&](const LossyPart& lossy) { return lossy.part == part; });
}

}  // namespace thimble
