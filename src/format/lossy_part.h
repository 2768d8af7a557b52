#pragma once

#include <string>

namespace thimble {

/// A part of a container that was quantised when it was packed, so that the container's logits are
/// not those of its source.
struct LossyPart {
  std::string part;          // "experts"
  std::string format;        // "mxfp4"
  float relative_error = 0;  // root mean square of what was lost over that of the weights
};

}  // namespace thimble
