#pragma once

#include <optional>
#include <string>

#include "grammar/char_automaton.h"
#include "grammar/schema_terms.h"

namespace thimble {

/// What a string may be: as an automaton where there is a pattern or format, and its length.
struct TextRules {
  std::optional<CharAutomaton> automaton;  // absent: any text
  uint32_t min = 0;                        // where there is an automaton, that counts it already
  uint32_t max = UINT32_MAX;

  /// Whether a string that is given fits.
  bool Takes(const std::string& text) const;
};

/// The rules of minLength, maxLength, pattern and format, all of them at once. What cannot be bound
/// is noted in *terms. Absent where no text fits.
std::optional<TextRules> ReadTextRules(const Conjunction& conjunction, SchemaTerms* terms);

}  // namespace thimble
