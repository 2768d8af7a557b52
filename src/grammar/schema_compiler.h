#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "grammar/char_automaton.h"
#include "grammar/grammar.h"
#include "grammar/schema_terms.h"
#include "json/json_value.h"

namespace thimble {

/// Whether a space may follow a comma or colon of JSON: some models write it in arguments.
enum class JsonSpacing : uint8_t { kNone, kOptional };

/// Spells one argument of a tool's call in a markup: its key (a node), what it is ("string",
/// "number", "boolean", "null", "array", "object") and its value (a node).
using ArgumentSpeller =
    std::function<uint32_t(uint32_t key, std::string_view type, uint32_t value)>;

/// Makes nodes of a grammar from one JSON schema. Bound are types, numbers' bounds and multiples,
/// lengths, patterns, formats, members in the schema's order, their number and what they need,
/// elements and their number, enumerations, alternatives (oneOf as anyOf), allOf, and references,
/// recursive ones as well. Members beyond those of the schema only where additionalProperties or
/// patternProperties say so, or where nothing is said of members at all. The rest is listed in
/// unbound(). JSON is compact, and a number's digits are limited.
///
/// Error(kUsage) naming field and place where a keyword is malformed or a schema contradicts
/// itself; Grammar::TooLarge for a schema that needs too large a grammar.
class SchemaCompiler {
 public:
  SchemaCompiler(const JsonValue& schema, std::string field, JsonSpacing spacing, Grammar* grammar);

  /// The JSON texts of the schema.
  uint32_t Json();
  /// Those that are objects.
  uint32_t JsonObject();
  /// The members of its objects as arguments, one after another.
  uint32_t Arguments(ArgumentSpeller speller);

  const std::vector<std::string>& unbound() const { return terms_.unbound(); }
  /// Why nothing fits, where something that was left out is the reason; maybe empty.
  const std::string& contradiction() const { return contradiction_; }

 private:
  enum class Style : uint8_t { kJson, kRaw, kArguments };  // JSON; a string's text; arguments
  enum Type : uint8_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kReal = 8,
    kString = 16,
    kArray = 32,
    kObject = 64
  };
  static constexpr uint8_t kNumber = kInteger | kReal;
  static constexpr uint8_t kAnyType = 127;
  using Key = std::tuple<Conjunction, uint8_t, Style>;
  using Nodes = std::vector<uint32_t>;
  struct Property {
    std::string name;
    Conjunction value;
    bool required = false;
    bool possible = true;
  };

  uint32_t Build(const Conjunction& terms, uint8_t types, Style style);
  Nodes Alternatives(const Conjunction& terms, uint8_t types, Style style);
  bool Distribute(const Conjunction& terms, uint8_t types, Style style, Nodes* nodes);
  uint8_t TypesOf(const Conjunction& terms);
  static uint8_t ImpliedTypes(const Conjunction& terms);
  uint8_t TypeNamed(const JsonValue& schema, const JsonValue& name);

  std::optional<std::vector<const JsonValue*>> GivenValues(const Conjunction& terms);
  void NoteUnchecked(const Conjunction& terms);
  std::vector<std::string> TextsOf(const std::vector<const JsonValue*>& values,
                                   const Conjunction& terms, uint8_t types, Style style);
  NumberBounds BoundsOf(const Conjunction& terms, bool integer);
  void AddBound(const JsonValue& schema, bool is_min, NumberBounds* bounds);
  uint32_t Number(const Conjunction& terms, bool integer);
  uint32_t String(const Conjunction& terms, Style style);
  uint32_t Array(const Conjunction& terms);
  Conjunction ItemAt(const Conjunction& terms, size_t index, bool* is_closed);

  uint32_t Object(const Conjunction& terms, Style style);
  std::vector<Property> Properties(const Conjunction& terms);
  Conjunction ValueOf(const Conjunction& terms, const std::string& name, bool* is_allowed);
  void AddNeeds(const Conjunction& terms, const std::vector<Property>& properties,
                Grammar::Members* members);
  struct Others;
  bool LimitNames(const JsonValue& schema, CharAutomaton* names);
  void ReadOthers(const JsonValue& schema, Others* others);
  Nodes SpellOthers(const Others& others, Style style);
  void AddOthers(const Conjunction& terms, const std::vector<Property>& properties, Style style,
                 Grammar::Members* members);
  void CountMembers(const Conjunction& terms, Grammar::Members* members);
  Grammar::Member SpellMember(uint32_t key, const Conjunction& value, Style style);
  uint32_t KeyOf(const std::string& name, Style style);
  bool Matches(const JsonValue& schema, const std::string& pattern, const std::string& name);

  uint32_t Impossible(const Conjunction& terms, std::string_view key, const std::string& reason);
  uint32_t Separator(std::string_view mark);
  uint32_t AnyText(Style style);
  Grammar::Member After(uint32_t node);

  SchemaTerms terms_;
  const JsonValue& schema_;
  const JsonSpacing spacing_;
  Grammar& grammar_;
  ArgumentSpeller speller_;
  std::map<Key, uint32_t> built_;
  std::map<Style, uint32_t> any_text_;
  size_t depth_ = 0;
  std::string contradiction_;
};

}  // namespace thimble
