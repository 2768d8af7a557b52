#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/state_cache.h"

namespace thimble {

/// The tokens by which one session advances in a sweep, and their place among all tokens of it.
struct Span {
  StateCache* state = nullptr;
  size_t first_row = 0;  // of the sweep's activation rows
  size_t num_tokens = 0;
};

/// All tokens of a sweep: those of each session in a row.
struct SweepTokens {
  std::span<const Span> spans;
  size_t num_tokens = 0;
};

}  // namespace thimble
