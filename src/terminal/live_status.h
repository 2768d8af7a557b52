#pragma once

#include <chrono>
#include <string_view>

#include "engine/engine.h"

namespace thimble {

/// What the engine is doing, on one line of standard error that is renewed in place at most five
/// times a second. Silent where standard error is no terminal. Where the text goes to a terminal
/// too, the line is shown only until the text begins: the two would overwrite each other.
class LiveStatus {
 public:
  /// Borrows the engine. `wanted`: the user asked for it.
  LiveStatus(const Engine& engine, bool wanted);

  bool active() const { return active_; }
  /// Shows `what`, how many tokens are done, the layer that the next sweep has come to, and what
  /// the engine does at the moment, if it is time.
  void Show(std::string_view what, size_t done_tokens, size_t layer);
  /// The prompt is read, and the first text or id about to be printed.
  void BeginText();
  /// Clears the line, so that other output can follow.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;

  const Engine& engine_;
  bool active_;
  bool shown_ = false;
  Clock::time_point start_ = Clock::now();  // of the prompt, then of the text
  Clock::time_point last_ = start_;
  EngineStats last_stats_;
};

}  // namespace thimble
