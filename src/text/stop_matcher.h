#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

/// Finds stop strings in streamed text and never lets a part of one out.
///
/// Text that may be the beginning of a stop string is held back until it is decided. The first
/// match is the one that is complete first; of those complete at the same character, the longest.
/// The text ends exactly before it. However the text is cut into calls, the result is the same.
///
/// Works on bytes. If the stop strings and each call's text are valid UTF-8, so is each output. One
/// thread at a time. Linear in the text times the number of stop strings.
class StopMatcher {
 public:
  /// Throws Error(kUsage) if a stop string is empty. None at all is fine: nothing is held back.
  explicit StopMatcher(std::vector<std::string> stops);

  /// Appends to *out what of `text`, and of text held back, is certain to precede every match.
  /// True once a stop string was found; from then on all text is dropped.
  bool Feed(std::string_view text, std::string* out);

  /// The text ended: appends what is still held back. The matcher then starts afresh.
  void Flush(std::string* out);

  bool stopped() const { return stopped_; }
  /// The stop string that was found; empty: none was.
  const std::string& found() const { return found_; }

 private:
  /// A stop string as a Knuth-Morris-Pratt automaton.
  struct Automaton {
    explicit Automaton(std::string stop_string);
    void Step(char c);
    bool complete() const { return matched == stop.size(); }

    std::string stop;
    std::vector<size_t> border;  // [i]: longest proper border of stop[0, i]; border[0] unused
    size_t matched = 0;          // the longest suffix of the text that is a prefix of `stop`
  };

  const std::string* LongestComplete() const;
  size_t LongestPartial() const;
  void Reset();

  std::vector<Automaton> automata_;
  std::string held_;  // the longest suffix of the text that is a prefix of a stop string
  bool stopped_ = false;
  std::string found_;
};

}  // namespace thimble
