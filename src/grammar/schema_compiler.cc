#include "grammar/schema_compiler.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "grammar/schema_text.h"

namespace thimble {
namespace {

constexpr size_t kMaxDepth = 300;     // of schemas being built in one another
constexpr size_t kMaxBuilt = 20'000;  // conjunctions
constexpr size_t kMaxPrefix = 1'000;  // prefixItems

}  // namespace

SchemaCompiler::SchemaCompiler(const JsonValue& schema, std::string field, JsonSpacing spacing,
                               Grammar* grammar)
    : terms_(schema, std::move(field)), schema_(schema), spacing_(spacing), grammar_(*grammar) {}

uint32_t SchemaCompiler::Json() { return Build({{&schema_, 0}}, kAnyType, Style::kJson); }

uint32_t SchemaCompiler::JsonObject() { return Build({{&schema_, 0}}, kObject, Style::kJson); }

uint32_t SchemaCompiler::Arguments(ArgumentSpeller speller) {
  speller_ = std::move(speller);
  return Build({{&schema_, 0}}, kObject, Style::kArguments);
}

uint32_t SchemaCompiler::Build(const Conjunction& terms, uint8_t types, Style style) {
  Conjunction expanded;
  if (!terms_.Expand(terms, &expanded)) return grammar_.Choice({});
  const auto [place, is_new] = built_.try_emplace({expanded, types, style}, Grammar::kNone);
  if (!is_new) return place->second;
  if (built_.size() > kMaxBuilt || depth_ == kMaxDepth) throw Grammar::TooLarge();
  terms_.Charge(300);
  // One that is being built refers to itself by its node.
  const uint32_t node = grammar_.Choice({});
  place->second = node;
  ++depth_;
  grammar_.SetChoice(node, Alternatives(expanded, types, style));
  --depth_;
  return node;
}

SchemaCompiler::Nodes SchemaCompiler::Alternatives(const Conjunction& terms, uint8_t types,
                                                   Style style) {
  Nodes nodes;
  if (Distribute(terms, types, style, &nodes)) return nodes;
  for (const SchemaTerm& term : terms) {
    const JsonValue* excluded = term.schema->Find("not");
    if (excluded == nullptr) continue;
    const bool excludes_all = SchemaTerms::IsTrue(*term.schema, "not") ||
                              (excluded->is_object() && excluded->members.empty());
    if (excludes_all) return {Impossible(terms, "not", "excludes everything")};
    terms_.Unbound(*term.schema, "not");
  }
  const uint8_t own = TypesOf(terms);
  if (own == 0) return {Impossible(terms, "type", "no type is left")};
  const bool is_part = (own & ~types) != 0;  // what does not fit may fit elsewhere
  types &= own;
  if (const auto values = GivenValues(terms)) {
    const std::vector<std::string> texts = TextsOf(*values, terms, types, style);
    if (texts.empty() && (is_part || style == Style::kArguments)) return {};
    if (texts.empty()) {
      return {Impossible(terms, "enum", "no value fits the type and the other keywords")};
    }
    return {grammar_.Text(grammar_.AddAutomaton(ByteAutomaton::OneOf(texts)))};
  }
  if (style == Style::kRaw) types &= kString;
  if (style == Style::kArguments) types &= kObject;
  if (types & kObject) nodes.push_back(Object(terms, style));
  if (types & kArray) nodes.push_back(Array(terms));
  if (types & kString) nodes.push_back(String(terms, style));
  if (types & kNumber) nodes.push_back(Number(terms, (types & kReal) == 0));
  if (types & kBoolean)
    nodes.insert(nodes.end(), {grammar_.Literal("true"), grammar_.Literal("false")});
  if (types & kNull) nodes.push_back(grammar_.Literal("null"));
  return nodes;
}

// Where a term has alternatives: the whole conjunction with each of them.
bool SchemaCompiler::Distribute(const Conjunction& terms, uint8_t types, Style style,
                                Nodes* nodes) {
  constexpr std::pair<const char*, uint8_t> kGroups[] = {{"anyOf", SchemaTerm::kAnyOf},
                                                         {"oneOf", SchemaTerm::kOneOf}};
  for (size_t i = 0; i < terms.size(); ++i) {
    const JsonValue& schema = *terms[i].schema;
    const bool is_nullable = SchemaTerms::IsTrue(schema, "nullable") &&
                             (terms[i].taken & SchemaTerm::kNullable) == 0 && i == 0;
    if (is_nullable) {
      Conjunction rest = terms;
      rest[i].taken |= SchemaTerm::kNullable;
      nodes->push_back(Build(rest, types, style));
      if ((types & kNull) != 0 && style == Style::kJson) nodes->push_back(grammar_.Literal("null"));
      return true;
    }
    for (const auto& [key, flag] : kGroups) {
      const JsonValue* options = terms_.Array(schema, key);
      if (options == nullptr || (terms[i].taken & flag) != 0) continue;
      if (options->items.empty()) terms_.Refuse(schema, key, "expected an array that is not empty");
      for (size_t k = 0; k < options->items.size(); ++k) {
        Conjunction rest = terms;
        rest[i].taken |= flag;
        rest.push_back({terms_.Child(schema, options->items[k], fmt::format("{}[{}]", key, k)), 0});
        nodes->push_back(Build(rest, types, style));
      }
      return true;
    }
  }
  return false;
}

uint8_t SchemaCompiler::TypeNamed(const JsonValue& schema, const JsonValue& name) {
  static const std::map<std::string, uint8_t, std::less<>> known = {
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject},   {"any", kAnyType}};
  const auto found = known.find(name.text);
  if (!name.is_string() || found == known.end()) {
    terms_.Refuse(schema, "type",
                  fmt::format("there is no type {}", WriteJson(name, JsonStyle::kCompact)));
  }
  return found->second;
}

uint8_t SchemaCompiler::TypesOf(const Conjunction& terms) {
  uint8_t types = kAnyType;
  bool any_named = false;
  for (const SchemaTerm& term : terms) {
    const JsonValue* type = term.schema->Find("type");
    if (type == nullptr) continue;
    any_named = true;
    uint8_t named = 0;
    if (!type->is_array()) named = TypeNamed(*term.schema, *type);
    for (const JsonValue& one : type->items) named |= TypeNamed(*term.schema, one);
    if (type->is_array() && type->items.empty()) {
      terms_.Refuse(*term.schema, "type", "expected at least one type");
    }
    types &= named;
  }
  return any_named ? types : ImpliedTypes(terms);
}

// Where no type is named, keywords say what is meant.
uint8_t SchemaCompiler::ImpliedTypes(const Conjunction& terms) {
  static const std::pair<uint8_t, std::vector<const char*>> keywords_of_types[] = {
      {kObject,
       {"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "minProperties", "maxProperties", "dependentRequired"}},
      {kArray, {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}},
      {kString, {"pattern", "format", "minLength", "maxLength"}},
      {kNumber, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
  uint8_t types = 0;
  for (const SchemaTerm& term : terms) {
    if (term.schema->Find("enum") != nullptr || term.schema->Find("const") != nullptr)
      return kAnyType;
    for (const auto& [type, keys] : keywords_of_types) {
      for (const char* key : keys) {
        if (term.schema->Find(key) != nullptr) types |= type;
      }
    }
  }
  return types == 0 ? kAnyType : types;
}

// ---- enumerations

std::optional<std::vector<const JsonValue*>> SchemaCompiler::GivenValues(const Conjunction& terms) {
  std::optional<std::vector<const JsonValue*>> values;
  const auto keep = [&](const std::vector<const JsonValue*>& more) {
    if (!values) {
      values = more;
      return;
    }
    terms_.Charge(values->size() * more.size());
    std::erase_if(*values, [&](const JsonValue* value) {
      return std::ranges::none_of(more, [&](const JsonValue* other) { return *value == *other; });
    });
  };
  for (const SchemaTerm& term : terms) {
    if (const JsonValue* value = term.schema->Find("const")) keep({value});
    const JsonValue* list = terms_.Array(*term.schema, "enum");
    if (list == nullptr) continue;
    if (list->items.empty()) {
      terms_.Refuse(*term.schema, "enum", "expected an array that is not empty");
    }
    std::vector<const JsonValue*> all;
    for (const JsonValue& value : list->items) all.push_back(&value);
    keep(all);
  }
  return values;
}

void SchemaCompiler::NoteUnchecked(const Conjunction& terms) {
  for (const SchemaTerm& term : terms) {
    for (const char* key : {"items", "minItems", "maxItems", "prefixItems", "properties",
                            "required", "minProperties", "maxProperties", "additionalProperties"}) {
      if (term.schema->Find(key) == nullptr) continue;
      terms_.Unbound(*term.schema, key, "on a list of values");
    }
  }
}

// The values that fit the other keywords, as they are spelled. Of arrays and objects only the type
// is looked at, which is noted where more is said of them.
std::vector<std::string> SchemaCompiler::TextsOf(const std::vector<const JsonValue*>& values,
                                                 const Conjunction& terms, uint8_t types,
                                                 Style style) {
  static constexpr uint8_t kTypes[] = {kNull, kBoolean, kInteger, kReal, kString, kArray, kObject};
  const auto rules = ReadTextRules(terms, &terms_);
  const NumberBounds bounds = BoundsOf(terms, (types & kReal) == 0);
  const auto fits = [&](const JsonValue& value) {
    if (value.is_number()) {
      const auto decimal = ParseDecimal(value.text);
      return (types & kNumber) != 0 && decimal && IsWithin(*decimal, bounds);
    }
    if ((types & kTypes[static_cast<size_t>(value.kind)]) == 0) return false;
    return !value.is_string() || (rules && rules->Takes(value.text));
  };
  std::vector<std::string> texts;
  for (const JsonValue* value : values) {
    if (!fits(*value) || style == Style::kArguments) continue;
    if (value->is_array() || value->is_object()) NoteUnchecked(terms);
    if (style == Style::kRaw) {
      texts.push_back(value->text);
      continue;
    }
    texts.push_back(WriteJson(*value, JsonStyle::kCompact));
    if (spacing_ == JsonSpacing::kOptional) texts.push_back(WriteJson(*value, JsonStyle::kPython));
  }
  return texts;
}

// ---- numbers and strings

void SchemaCompiler::AddBound(const JsonValue& schema, bool is_min, NumberBounds* bounds) {
  const char* plain = is_min ? "minimum" : "maximum";
  const char* exclusive = is_min ? "exclusiveMinimum" : "exclusiveMaximum";
  std::optional<NumberBounds::Bound>& bound = is_min ? bounds->min : bounds->max;
  const auto tighten = [&](const std::optional<Decimal>& value, bool excluded) {
    if (!value) return;
    const int order = bound ? CompareDecimals(*value, bound->value) : 0;
    const bool is_tighter = !bound || (is_min ? order > 0 : order < 0) || (order == 0 && excluded);
    if (is_tighter) bound = {*value, excluded};
  };
  tighten(terms_.Number(schema, plain), SchemaTerms::IsTrue(schema, exclusive));
  tighten(terms_.Number(schema, exclusive), true);
}

NumberBounds SchemaCompiler::BoundsOf(const Conjunction& terms, bool integer) {
  NumberBounds bounds;
  bounds.integer = integer;
  for (const SchemaTerm& term : terms) {
    const JsonValue& schema = *term.schema;
    AddBound(schema, true, &bounds);
    AddBound(schema, false, &bounds);
    const JsonValue* format = schema.Find("format");
    const bool is_int32 = format != nullptr && format->text == "int32";
    const bool is_int64 = format != nullptr && format->text == "int64";
    if (integer && (is_int32 || is_int64)) {
      const std::string most = is_int32 ? "2147483647" : "9223372036854775807";
      if (!bounds.min) bounds.min = {{true, most, ""}, false};
      if (!bounds.max) bounds.max = {{false, most, ""}, false};
    }
    const auto step = terms_.Number(schema, "multipleOf");
    if (!step) continue;
    if (step->is_zero() || step->negative)
      terms_.Refuse(schema, "multipleOf", "expected a number above 0");
    if (bounds.multiple_of && CompareDecimals(*bounds.multiple_of, *step) != 0) {
      terms_.Unbound(schema, "multipleOf", "a second one");
    } else {
      bounds.multiple_of = step;
    }
  }
  return bounds;
}

uint32_t SchemaCompiler::Number(const Conjunction& terms, bool integer) {
  NumberBounds bounds = BoundsOf(terms, integer);
  terms_.Charge(bounds.multiple_of ? 100'000 : 1'000);
  auto automaton = NumberAutomaton(bounds);
  if (!automaton) {
    bounds.multiple_of.reset();
    automaton = NumberAutomaton(bounds);
    for (const SchemaTerm& term : terms) {
      if (term.schema->Find("multipleOf") != nullptr) {
        terms_.Unbound(*term.schema, "multipleOf", "too long a number");
      }
    }
  }
  if (!automaton) throw Grammar::TooLarge();
  if (automaton->empty()) {
    const bool has_both =
        bounds.min && bounds.max && CompareDecimals(bounds.min->value, bounds.max->value) > 0;
    return Impossible(terms, "minimum",
                      has_both ? "it is above the maximum" : "no number is within the bounds");
  }
  return grammar_.Text(grammar_.AddAutomaton(std::move(*automaton)));
}

uint32_t SchemaCompiler::AnyText(Style style) {
  const auto [place, is_new] = any_text_.try_emplace(style, 0);
  if (is_new) {
    place->second = grammar_.AddAutomaton(
        ByteAutomaton::AnyText(style == Style::kJson ? TextSpelling::kJson : TextSpelling::kRaw));
  }
  return place->second;
}

uint32_t SchemaCompiler::String(const Conjunction& terms, Style style) {
  const auto rules = ReadTextRules(terms, &terms_);
  if (!rules) return Impossible(terms, "pattern", "no text fits it and the other keywords");
  // The opening quote comes to the same state as a character does.
  const uint32_t quote = style == Style::kJson ? 1 : 0;
  const uint32_t max = rules->max == UINT32_MAX ? Grammar::kNoLimit : rules->max + quote;
  const uint32_t min = rules->min == 0 ? 0 : rules->min + quote;
  if (!rules->automaton) return grammar_.Text(AnyText(style), min, max);
  terms_.Charge(100 * rules->automaton->num_states());
  ByteAutomaton automaton = ByteAutomaton::Of(
      *rules->automaton, style == Style::kJson ? TextSpelling::kJson : TextSpelling::kRaw);
  if (automaton.state(0).distance > max) {
    return Impossible(terms, "maxLength", "every text of the pattern is longer");
  }
  return grammar_.Text(grammar_.AddAutomaton(std::move(automaton)), 0, max);
}

// ---- arrays

uint32_t SchemaCompiler::Separator(std::string_view mark) {
  const uint32_t plain = grammar_.Literal(mark);
  if (spacing_ == JsonSpacing::kNone) return plain;
  return grammar_.Choice({plain, grammar_.Literal(fmt::format("{} ", mark))});
}

Grammar::Member SchemaCompiler::After(uint32_t node) {
  return {node, grammar_.Sequence({Separator(","), node}), false, {}};
}

// What every term says of the element at `index`; beyond the prefixes of all of them, of the rest.
Conjunction SchemaCompiler::ItemAt(const Conjunction& terms, size_t index, bool* is_closed) {
  Conjunction item;
  for (const SchemaTerm& term : terms) {
    const JsonValue& schema = *term.schema;
    const JsonValue* prefix = terms_.Array(schema, "prefixItems");
    const JsonValue* items = schema.Find("items");
    const char* rest_key = "items";
    // Older drafts: an array of items, and additionalItems for the rest.
    if (items != nullptr && items->is_array()) {
      prefix = items;
      items = schema.Find("additionalItems");
      rest_key = "additionalItems";
    }
    const JsonValue* rest = items;
    const JsonValue* unevaluated = schema.Find("unevaluatedItems");
    if (rest == nullptr && prefix != nullptr && unevaluated != nullptr) rest = unevaluated;
    if (prefix != nullptr && index < prefix->items.size()) {
      const std::string step =
          fmt::format("{}[{}]", prefix == items ? "items" : "prefixItems", index);
      item.push_back({terms_.Child(schema, prefix->items[index], step), 0});
    } else if (rest != nullptr) {
      item.push_back({terms_.Child(schema, *rest, rest_key), 0});
      *is_closed = *is_closed || (rest->is_boolean() && !rest->boolean);
    }
  }
  return item;
}

uint32_t SchemaCompiler::Array(const Conjunction& terms) {
  Grammar::Items items;
  size_t prefix = 0;
  for (const SchemaTerm& term : terms) {
    const JsonValue& schema = *term.schema;
    const auto min = terms_.Count(schema, "minItems");
    const auto max = terms_.Count(schema, "maxItems");
    if (min && max && *min > *max) {
      terms_.Refuse(schema, "minItems", fmt::format("{} is above maxItems, {}", *min, *max));
    }
    items.min = std::max(items.min, min.value_or(0));
    items.max = std::min(items.max, max.value_or(Grammar::kNoLimit));
    for (const char* key : {"prefixItems", "items"}) {
      const JsonValue* list = schema.Find(key);
      if (list != nullptr && list->is_array()) prefix = std::max(prefix, list->items.size());
    }
  }
  if (prefix > kMaxPrefix) throw Grammar::TooLarge();
  for (size_t i = 0; i < prefix; ++i) {
    bool is_closed = false;
    const Conjunction item = ItemAt(terms, i, &is_closed);
    items.prefix.push_back(After(Build(item, kAnyType, Style::kJson)));
  }
  bool is_closed = false;
  const Conjunction rest = ItemAt(terms, prefix, &is_closed);
  if (is_closed) {
    items.max = std::min(items.max, static_cast<uint32_t>(prefix));
    if (items.min > items.max) return Impossible(terms, "minItems", "there are fewer items");
  } else {
    items.rest = After(Build(rest, kAnyType, Style::kJson));
  }
  return grammar_.Sequence(
      {grammar_.Literal("["), grammar_.AddItems(std::move(items)), grammar_.Literal("]")});
}

uint32_t SchemaCompiler::Impossible(const Conjunction& terms, std::string_view key,
                                    const std::string& reason) {
  // A schema that contradicts itself is refused. Where several meet, other alternatives may remain.
  const JsonValue& schema = *terms.front().schema;
  if (terms.size() == 1) terms_.Refuse(schema, key, reason);
  if (contradiction_.empty()) contradiction_ = fmt::format("{}: {}", terms_.PathOf(schema), reason);
  return grammar_.Choice({});
}

}  // namespace thimble
