#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/mxfp4.h"

namespace thimble {

/// The code of E2M1 nearest to a magnitude, of two the even one; beyond 6 that of 6.
inline uint8_t NearestE2M1(double magnitude) {
  const auto distance = [&](uint8_t code) { return std::abs(magnitude - double{kE2M1[code]}); };
  uint8_t best = 0;
  for (uint8_t code = 1; code < 8; ++code) {
    const bool wins_tie = distance(code) == distance(best) && code % 2 == 0;
    if (distance(code) < distance(best) || wins_tie) best = code;
  }
  return best;
}

}  // namespace thimble
