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

/// Told of the progress of a sweep, from the thread that runs it. False of either function stops
/// the sweep: Error(kInterrupted), and its sessions are poisoned.
class SweepObserver {
 public:
  virtual ~SweepObserver() = default;
  /// Before each layer.
  virtual bool OnLayer(size_t layer) = 0;
  /// Between the pieces of a layer's work, mostly many times a second: a layer may take minutes.
  virtual bool Continue() { return true; }
};

}  // namespace thimble
