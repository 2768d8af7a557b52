#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "grammar/char_automaton.h"

namespace thimble {

/// Why a regular expression did not become an automaton.
class PatternError : public std::runtime_error {
 public:
  PatternError(const std::string& message, bool is_invalid)
      : std::runtime_error(message), is_invalid_(is_invalid) {}
  /// Whether it is no regular expression at all, rather than one that is not supported.
  bool is_invalid() const noexcept { return is_invalid_; }

 private:
  bool is_invalid_;
};

/// The texts in which a regular expression of ECMA-262 (with the u flag) finds a match, or with
/// `whole` those that it matches from end to end. Lookaheads are supported at the very beginning;
/// word boundaries, lookbehind, other lookaheads and back references are not: PatternError. Neither
/// are expressions that need more than CharAutomaton::kMaxStates states, or more than *work steps;
/// those that were taken are subtracted. Bounded time and memory.
///
/// Own code, because no Debian library fits: a token's allowance needs the automaton after every
/// byte of a tree of 163,840 tokens. PCRE2's partial matching starts over for each text, and RE2
/// keeps its automaton to itself.
CharAutomaton CompilePattern(std::string_view pattern, bool whole, size_t* work);

}  // namespace thimble
