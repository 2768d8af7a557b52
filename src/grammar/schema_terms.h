#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/char_automaton.h"
#include "grammar/number_automaton.h"
#include "json/json_value.h"

namespace thimble {

/// A schema as one of several that must hold together. Its alternatives are taken out one group
/// after another: `taken` says which are already in the conjunction, and whether what the schema
/// refers to is.
struct SchemaTerm {
  enum : uint8_t { kAnyOf = 1, kOneOf = 2, kNullable = 4, kExpanded = 8 };
  const JsonValue* schema = nullptr;
  uint8_t taken = 0;
  bool operator==(const SchemaTerm&) const = default;
  auto operator<=>(const SchemaTerm&) const =
      default;  // NOLINT(modernize-use-nullptr): of clang-tidy 14
};
using Conjunction = std::vector<SchemaTerm>;

/// A JSON schema and its parts, by place: references, typed keywords, and where an error is.
/// Borrows the schema. Every error is an Error(kUsage) that begins with the place, e.g.
/// response_format.json_schema.properties.age.minimum.
class SchemaTerms {
 public:
  SchemaTerms(const JsonValue& root, std::string field);

  /// The terms with what they refer to ($ref, allOf) in their place. False where a term is the
  /// schema `false`.
  bool Expand(const Conjunction& terms, Conjunction* expanded);

  /// A schema that is the value of a keyword, or a member or element of it: true, false or an
  /// object.
  const JsonValue* Child(const JsonValue& parent, const JsonValue& child, const std::string& step);
  const std::string& PathOf(const JsonValue& schema) const;

  // Keywords of a schema. Absent where the schema lacks them.
  std::optional<uint32_t> Count(const JsonValue& schema, const char* key) const;
  std::optional<Decimal> Number(const JsonValue& schema, const char* key) const;
  const std::string* String(const JsonValue& schema, const char* key) const;
  const JsonValue* Array(const JsonValue& schema, const char* key) const;
  const JsonValue* Object(const JsonValue& schema, const char* key) const;
  static bool IsTrue(const JsonValue& schema, const char* key);

  [[noreturn]] void Refuse(const JsonValue& schema, std::string_view key,
                           const std::string& what) const;

  /// Notes that a keyword is not bound, and why (empty: no reason).
  void Unbound(const JsonValue& schema, std::string_view key, const std::string& reason = {});
  /// Steps left for the automata of the whole schema (see CompilePattern).
  size_t* work() { return &work_; }
  /// A pattern's automaton, made once. PatternError where there is none.
  const CharAutomaton& Pattern(std::string_view pattern, bool whole);
  /// Takes `steps` of them; refuses the schema where they are spent.
  void Charge(size_t steps);
  const std::vector<std::string>& unbound() const { return unbound_; }

 private:
  const JsonValue* Resolve(const JsonValue& schema, const std::string& reference);
  const JsonValue* FindAnchor(const JsonValue& place, std::string_view name,
                              const std::string& path);
  void CheckKeywords(const JsonValue& schema);
  std::string Place(const JsonValue& schema, std::string_view key) const;

  const JsonValue& root_;
  const std::string field_;
  std::map<const JsonValue*, std::string> paths_;
  std::set<const JsonValue*> checked_;
  std::vector<std::string> unbound_;
  size_t work_ = 10'000'000;
  std::map<std::pair<std::string, bool>, CharAutomaton> patterns_;
};

}  // namespace thimble
