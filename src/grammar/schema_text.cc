#include "grammar/schema_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "grammar/pattern.h"
#include "grammar/string_formats.h"

namespace thimble {
namespace {

// Formats that say nothing about a string's characters.
bool IsFree(const std::string& format) {
  return format == "password" || format == "binary" || format == "string" || format == "text" ||
         format == "regex" || format == "uri-template" || format == "color";
}

class TextReader {
 public:
  TextReader(TextRules* rules, SchemaTerms* terms) : rules_(*rules), terms_(*terms) {}

  void Read(const JsonValue& schema) {
    const auto min = terms_.Count(schema, "minLength");
    const auto max = terms_.Count(schema, "maxLength");
    if (min && max && *min > *max) {
      terms_.Refuse(schema, "minLength", fmt::format("{} is above maxLength, {}", *min, *max));
    }
    rules_.min = std::max(rules_.min, min.value_or(0));
    rules_.max = std::min(rules_.max, max.value_or(UINT32_MAX));
    if (const std::string* pattern = terms_.String(schema, "pattern")) {
      Bind(schema, "pattern", *pattern, false);
    }
    if (const std::string* format = terms_.String(schema, "format")) {
      if (const auto known = FindFormat(*format)) {
        Bind(schema, "format", *known, true);
      } else if (!IsFree(*format)) {
        terms_.Unbound(schema, "format", fmt::format("'{}' is not known", *format));
      }
    }
  }

 private:
  void Bind(const JsonValue& schema, const char* key, std::string_view pattern, bool whole) {
    try {
      const CharAutomaton& automaton = terms_.Pattern(pattern, whole);
      rules_.automaton =
          rules_.automaton ? rules_.automaton->And(automaton, terms_.work()) : automaton;
    } catch (const PatternError& error) {
      if (error.is_invalid()) terms_.Refuse(schema, key, error.what());
      terms_.Unbound(schema, key, error.what());
    } catch (const CharAutomaton::TooLarge&) {
      terms_.Unbound(schema, key, "together with others it needs too many states");
    }
  }

  TextRules& rules_;
  SchemaTerms& terms_;
};

}  // namespace

bool TextRules::Takes(const std::string& text) const {
  const size_t length = CodePoints(text).size();
  return length >= min && length <= max && (!automaton || automaton->Takes(text));
}

std::optional<TextRules> ReadTextRules(const Conjunction& conjunction, SchemaTerms* terms) {
  TextRules rules;
  TextReader reader(&rules, terms);
  for (const SchemaTerm& term : conjunction) reader.Read(*term.schema);
  if (rules.min > rules.max) return std::nullopt;
  if (!rules.automaton) return rules;
  if (rules.min > 0) {
    try {
      rules.automaton = rules.automaton->And(CharAutomaton::AtLeast(rules.min), terms->work());
    } catch (const CharAutomaton::TooLarge&) {
      terms->Unbound(*conjunction.front().schema, "minLength",
                     "together with the pattern it needs too many states");
    }
    rules.min = 0;
  }
  if (rules.automaton->empty()) return std::nullopt;
  return rules;
}

}  // namespace thimble
