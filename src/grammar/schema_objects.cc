// The objects of a schema.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "grammar/pattern.h"
#include "grammar/schema_compiler.h"
#include "grammar/schema_text.h"

namespace thimble {
namespace {

bool IsFalse(const JsonValue* schema) {
  return schema != nullptr && schema->is_boolean() && !schema->boolean;
}

// Whether any term speaks of members other than by `type`.
bool SpeaksOfMembers(const Conjunction& terms) {
  return std::ranges::any_of(terms, [](const SchemaTerm& term) {
    return term.schema->Find("properties") != nullptr ||
           term.schema->Find("additionalProperties") != nullptr ||
           term.schema->Find("patternProperties") != nullptr ||
           term.schema->Find("unevaluatedProperties") != nullptr;
  });
}

}  // namespace

bool SchemaCompiler::Matches(const JsonValue& schema, const std::string& pattern,
                             const std::string& name) {
  try {
    return terms_.Pattern(pattern, false).Takes(name);
  } catch (const PatternError& error) {
    const std::string key = fmt::format("patternProperties.{}", pattern);
    if (error.is_invalid()) terms_.Refuse(schema, key, error.what());
    terms_.Unbound(schema, key, error.what());
    return false;
  }
}

// What all terms say of the member `name`. A term that names it neither by itself nor by a pattern
// says what it says of all others.
Conjunction SchemaCompiler::ValueOf(const Conjunction& terms, const std::string& name,
                                    bool* is_allowed) {
  Conjunction value;
  for (const SchemaTerm& term : terms) {
    const JsonValue& schema = *term.schema;
    bool is_named = false;
    if (const JsonValue* properties = terms_.Object(schema, "properties")) {
      if (const JsonValue* own = properties->Find(name)) {
        value.push_back({terms_.Child(schema, *own, fmt::format("properties.{}", name)), 0});
        is_named = true;
      }
    }
    if (const JsonValue* patterns = terms_.Object(schema, "patternProperties")) {
      for (const JsonMember& pattern : patterns->members) {
        if (!Matches(schema, pattern.key, name)) continue;
        const std::string step = fmt::format("patternProperties.{}", pattern.key);
        value.push_back({terms_.Child(schema, pattern.value, step), 0});
        is_named = true;
      }
    }
    const JsonValue* others = schema.Find("additionalProperties");
    if (!is_named && others != nullptr) {
      value.push_back({terms_.Child(schema, *others, "additionalProperties"), 0});
    }
    if (const JsonValue* names = schema.Find("propertyNames")) {
      Conjunction expanded;
      const bool any =
          terms_.Expand({{terms_.Child(schema, *names, "propertyNames"), 0}}, &expanded);
      const auto rules = ReadTextRules(expanded, &terms_);
      if (!any || !rules || !rules->Takes(name)) *is_allowed = false;
    }
  }
  for (const SchemaTerm& term : value) *is_allowed = *is_allowed && !IsFalse(term.schema);
  return value;
}

std::vector<SchemaCompiler::Property> SchemaCompiler::Properties(const Conjunction& terms) {
  std::vector<Property> properties;
  std::map<std::string, size_t> places;
  const auto add = [&](const std::string& name) -> Property& {
    const auto [place, is_new] = places.try_emplace(name, properties.size());
    if (is_new) {
      terms_.Charge(properties.size());
      properties.push_back({name, {}, false, true});
      properties.back().value = ValueOf(terms, name, &properties.back().possible);
    }
    return properties[place->second];
  };
  for (const SchemaTerm& term : terms) {
    const JsonValue* named = terms_.Object(*term.schema, "properties");
    for (size_t i = 0; named != nullptr && i < named->members.size(); ++i)
      add(named->members[i].key);
  }
  for (const SchemaTerm& term : terms) {
    const JsonValue* required = term.schema->Find("required");
    // Older drafts have a boolean in the member's own schema.
    if (required == nullptr || required->is_boolean()) continue;
    terms_.Array(*term.schema, "required");
    for (const JsonValue& name : required->items) {
      if (!name.is_string()) terms_.Refuse(*term.schema, "required", "expected names");
      Property& property = add(name.text);
      property.required = true;
      if (property.possible) continue;
      terms_.Refuse(*term.schema, "required",
                    fmt::format("'{}' is required, but nothing can be its value", name.text));
    }
  }
  std::erase_if(properties, [](const Property& property) { return !property.possible; });
  return properties;
}

uint32_t SchemaCompiler::KeyOf(const std::string& name, Style style) {
  std::string key;
  if (style == Style::kArguments) {
    for (const char c : name) {
      if (c == '&' || c == '"') {
        key += c == '&' ? "&amp;" : "&quot;";
      } else {
        key += c;
      }
    }
  } else {
    key = "\"";
    EscapeJson(name, &key);
    key += '"';
  }
  return grammar_.Literal(key);
}

// A member in JSON, or an argument with what its value is.
Grammar::Member SchemaCompiler::SpellMember(uint32_t key, const Conjunction& value, Style style) {
  if (style == Style::kJson) {
    const uint32_t node =
        grammar_.Sequence({key, Separator(":"), Build(value, kAnyType, Style::kJson)});
    return After(node);
  }
  static constexpr std::pair<uint8_t, const char*> kTypes[] = {
      {kNull, "null"},     {kBoolean, "boolean"}, {kNumber, "number"},
      {kString, "string"}, {kArray, "array"},     {kObject, "object"}};
  Conjunction expanded;
  const uint32_t nothing = grammar_.Choice({});
  if (!terms_.Expand(value, &expanded)) return {nothing, nothing, false, {}};
  // Only types that the value's own keywords allow: others would be refused as contradictions.
  const uint8_t types = TypesOf(expanded);
  Nodes nodes;
  for (const auto& [type, name] : kTypes) {
    if ((types & type) == 0 && type != kNull) continue;  // null may be allowed beside the types
    const Style inner = type == kString ? Style::kRaw : Style::kJson;
    nodes.push_back(speller_(key, name, Build(value, type, inner)));
  }
  const uint32_t node = grammar_.Choice(std::move(nodes));
  return {node, node, false, {}};
}

void SchemaCompiler::AddNeeds(const Conjunction& terms, const std::vector<Property>& properties,
                              Grammar::Members* members) {
  const size_t limit = std::min(properties.size(), Grammar::kMaxNeeding);
  const auto find = [&](const std::string& name) {
    const auto end = properties.begin() + static_cast<ptrdiff_t>(limit);
    return static_cast<size_t>(std::ranges::find(properties.begin(), end, name, &Property::name) -
                               properties.begin());
  };
  for (const SchemaTerm& term : terms) {
    for (const char* key : {"dependentRequired", "dependencies"}) {
      const JsonValue* needs = terms_.Object(*term.schema, key);
      for (size_t i = 0; needs != nullptr && i < needs->members.size(); ++i) {
        const JsonMember& entry = needs->members[i];
        const size_t from = find(entry.key);
        for (const JsonValue& name : entry.value.items) {
          const size_t to = find(name.text);
          if (from < limit && to < limit) {
            members->members[from].needs.push_back(static_cast<uint32_t>(to));
          } else {
            terms_.Unbound(*term.schema, fmt::format("{}.{}", key, entry.key));
          }
        }
      }
    }
  }
}

// What members may be called and hold that no property names.
struct SchemaCompiler::Others {
  CharAutomaton names;
  std::vector<std::pair<CharAutomaton, SchemaTerm>> by_pattern;
  bool is_open = false;    // those that no pattern matches are allowed
  bool is_closed = false;  // but a term forbids them
  Conjunction value;       // what they hold
};

// Binds names by propertyNames. False where no name fits.
bool SchemaCompiler::LimitNames(const JsonValue& schema, CharAutomaton* names) {
  const JsonValue* rule = schema.Find("propertyNames");
  if (rule == nullptr) return true;
  Conjunction terms;
  if (!terms_.Expand({{terms_.Child(schema, *rule, "propertyNames"), 0}}, &terms)) return false;
  const auto rules = ReadTextRules(terms, &terms_);
  if (!rules) return false;
  if (rules->automaton) *names = names->And(*rules->automaton, terms_.work());
  if (rules->min > 0) *names = names->And(CharAutomaton::AtLeast(rules->min), terms_.work());
  if (rules->max != UINT32_MAX) {
    *names = names->AndNot(CharAutomaton::AtLeast(size_t{rules->max} + 1), terms_.work());
  }
  if (const auto values = GivenValues(terms)) {
    std::vector<std::string> texts;
    for (const JsonValue* value : *values) texts.push_back(value->text);
    *names = names->And(CharAutomaton::Of(texts), terms_.work());
  }
  return !names->empty();
}

void SchemaCompiler::ReadOthers(const JsonValue& schema, Others* others) {
  const JsonValue* patterns = terms_.Object(schema, "patternProperties");
  for (size_t i = 0; patterns != nullptr && i < patterns->members.size(); ++i) {
    const JsonMember& entry = patterns->members[i];
    const std::string step = fmt::format("patternProperties.{}", entry.key);
    const SchemaTerm value = {terms_.Child(schema, entry.value, step), 0};
    try {
      others->by_pattern.emplace_back(terms_.Pattern(entry.key, false), value);
    } catch (const PatternError& error) {
      if (error.is_invalid()) terms_.Refuse(schema, step, error.what());
      terms_.Unbound(schema, step, error.what());
      others->is_closed = true;  // whether a name would match it is not known
    }
  }
  const JsonValue* rest = schema.Find("additionalProperties");
  if (rest == nullptr) return;
  others->is_open = true;
  others->is_closed = others->is_closed || IsFalse(rest);
  others->value.push_back({terms_.Child(schema, *rest, "additionalProperties"), 0});
}

SchemaCompiler::Nodes SchemaCompiler::SpellOthers(const Others& others, Style style) {
  Nodes nodes;
  const auto add = [&](const CharAutomaton& names, const Conjunction& value) {
    if (names.empty()) return;
    terms_.Charge(100 * names.num_states());
    const uint32_t key = grammar_.Text(grammar_.AddAutomaton(ByteAutomaton::Of(
        names, style == Style::kArguments ? TextSpelling::kRaw : TextSpelling::kJson)));
    nodes.push_back(SpellMember(key, value, style).first);
  };
  // A name that several patterns match is not offered: it would have to fit all of them.
  for (const auto& [pattern, value] : others.by_pattern) {
    CharAutomaton names = others.names.And(pattern, terms_.work());
    for (const auto& [other, other_value] : others.by_pattern) {
      if (&other != &pattern) names = names.AndNot(other, terms_.work());
    }
    add(names, {value});
  }
  if (!others.is_open || others.is_closed) return nodes;
  CharAutomaton names = others.names;
  for (const auto& [pattern, value] : others.by_pattern) {
    names = names.AndNot(pattern, terms_.work());
  }
  add(names, others.value);
  return nodes;
}

// Members that no property names: by pattern, or any others where a term says what those are.
void SchemaCompiler::AddOthers(const Conjunction& terms, const std::vector<Property>& properties,
                               Style style, Grammar::Members* members) {
  std::vector<std::string> taken;
  taken.reserve(properties.size());
  for (const Property& property : properties) taken.push_back(property.name);
  Others others = {.names = CharAutomaton::Any().AndNot(CharAutomaton::Of(taken), terms_.work()),
                   .by_pattern = {},
                   .value = {}};
  if (style == Style::kArguments) {
    // Characters that an attribute spells otherwise are left out.
    others.names = others.names.And(terms_.Pattern("[^\"&<>\\x00-\\x1f]+", true), terms_.work());
  }
  others.is_open = !SpeaksOfMembers(terms);
  for (const SchemaTerm& term : terms) {
    if (!LimitNames(*term.schema, &others.names)) return;
    ReadOthers(*term.schema, &others);
  }
  Nodes nodes = SpellOthers(others, style);
  if (nodes.empty()) return;
  const uint32_t choice = grammar_.Choice(std::move(nodes));
  members->others =
      style == Style::kJson ? After(choice) : Grammar::Member{choice, choice, false, {}};
}

void SchemaCompiler::CountMembers(const Conjunction& terms, Grammar::Members* members) {
  for (const SchemaTerm& term : terms) {
    const JsonValue& schema = *term.schema;
    const auto min = terms_.Count(schema, "minProperties");
    const auto max = terms_.Count(schema, "maxProperties");
    if (min && max && *min > *max) {
      terms_.Refuse(schema, "minProperties",
                    fmt::format("{} is above maxProperties, {}", *min, *max));
    }
    members->min = std::max(members->min, min.value_or(0));
    members->max = std::min(members->max, max.value_or(Grammar::kNoLimit));
  }
}

uint32_t SchemaCompiler::Object(const Conjunction& terms, Style style) {
  Grammar::Members members;
  const std::vector<Property> properties = Properties(terms);
  for (const Property& property : properties) {
    members.members.push_back(SpellMember(KeyOf(property.name, style), property.value, style));
    members.members.back().required = property.required;
  }
  AddNeeds(terms, properties, &members);
  try {
    AddOthers(terms, properties, style, &members);
  } catch (const CharAutomaton::TooLarge&) {
    throw Grammar::TooLarge();
  } catch (const PatternError&) {
    throw Grammar::TooLarge();
  }
  CountMembers(terms, &members);
  const auto needed =
      static_cast<size_t>(std::ranges::count(properties, true, &Property::required));
  if (members.max < needed) {
    return Impossible(terms, "maxProperties", fmt::format("{} members are required", needed));
  }
  if (members.others.later == Grammar::kNone && members.min > properties.size()) {
    return Impossible(terms, "minProperties", fmt::format("there are only {}", properties.size()));
  }
  const uint32_t node = grammar_.AddMembers(std::move(members));
  if (style == Style::kArguments) return node;
  return grammar_.Sequence({grammar_.Literal("{"), node, grammar_.Literal("}")});
}

}  // namespace thimble
