#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/state_cache.h"

namespace thimble {

/// The tokens by which one session advances in a sweep, and their place among all its tokens.
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

/// Receives the progress of a sweep, on the thread that runs it. If either function returns false,
/// the sweep ends with Error(kInterrupted) and its sessions are poisoned.
class SweepObserver {
 public:
  virtual ~SweepObserver() = default;
  /// Before each layer.
  virtual bool OnLayer(size_t layer) = 0;
  /// Between the pieces of a layer's work, usually many times a second. A layer may take minutes.
  virtual bool Continue() { return true; }
};

}  // namespace thimble
