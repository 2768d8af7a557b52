#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace thimble {

StopMatcher::Automaton::Automaton(std::string stop_string)
    : stop(std::move(stop_string)), border(stop.size() + 1, 0) {
  for (size_t i = 1; i < stop.size(); ++i) {
    size_t length = border[i];
    while (length > 0 && stop[length] != stop[i]) length = border[length];
    border[i + 1] = stop[length] == stop[i] ? length + 1 : 0;
  }
}

/// Never called once complete: the matcher has stopped then.
void StopMatcher::Automaton::Step(char c) {
  while (matched > 0 && stop[matched] != c) matched = border[matched];
  if (stop[matched] == c) ++matched;
}

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    if (stop.empty()) {
      throw Error(ErrorCode::kUsage,
                  "expected stop strings of at least one character, found an "
                  "empty one; leave it out");
    }
    automata_.emplace_back(std::move(stop));
  }
}

const std::string* StopMatcher::LongestComplete() const {
  const std::string* longest = nullptr;
  for (const Automaton& a : automata_) {
    if (a.complete() && (longest == nullptr || a.stop.size() > longest->size())) longest = &a.stop;
  }
  return longest;
}

size_t StopMatcher::LongestPartial() const {
  size_t longest = 0;
  for (const Automaton& a : automata_) longest = std::max(longest, a.matched);
  return longest;
}

bool StopMatcher::Feed(std::string_view text, std::string* out) {
  if (stopped_) return true;
  for (const char c : text) {
    held_ += c;
    for (Automaton& a : automata_) a.Step(c);
    if (const std::string* match = LongestComplete()) {
      out->append(held_, 0, held_.size() - match->size());
      held_.clear();
      stopped_ = true;
      found_ = *match;
      return true;
    }
  }
  const size_t certain = held_.size() - LongestPartial();
  out->append(held_, 0, certain);
  held_.erase(0, certain);
  return false;
}

void StopMatcher::Flush(std::string* out) {
  out->append(held_);
  Reset();
}

void StopMatcher::Reset() {
  held_.clear();
  stopped_ = false;
  found_.clear();
  for (Automaton& a : automata_) a.matched = 0;
}

}  // namespace thimble
