#include "grammar/schema_terms.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "base/error.h"
#include "grammar/pattern.h"

namespace thimble {
namespace {

constexpr size_t kMaxTerms = 500;   // of one conjunction
constexpr size_t kMaxUnbound = 20;  // that are listed
constexpr uint32_t kMaxCount = 1'000'000'000;

// What is bound, or needs no binding.
const std::set<std::string_view>& KnownKeywords() {
  static const std::set<std::string_view> known = {
      "type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$dynamicRef", "nullable",
      "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
      "maxLength", "pattern", "format", "items", "prefixItems", "additionalItems", "minItems",
      "maxItems", "properties", "required", "additionalProperties", "patternProperties",
      "propertyNames", "minProperties", "maxProperties", "dependentRequired", "dependencies",
      "uniqueItems", "not",
      // These bind nothing.
      "title", "description", "default", "example", "examples", "$schema", "$id", "id", "$anchor",
      "$dynamicAnchor", "$comment", "$defs", "$vocabulary", "definitions", "deprecated", "readOnly",
      "writeOnly", "strict", "discriminator", "xml", "externalDocs", "contentMediaType",
      "contentEncoding", "contentSchema", "propertyOrdering", "name", "$recursiveAnchor",
      "unevaluatedProperties", "then", "else", "minContains", "maxContains", "markdownDescription",
      "enumNames", "enumDescriptions", "errorMessage"};
  return known;
}

std::string Unescaped(std::string_view step) {
  std::string plain;
  for (size_t i = 0; i < step.size(); ++i) {
    const std::string_view rest = step.substr(i);
    if (rest.starts_with("~0") || rest.starts_with("~1")) {
      plain += rest[1] == '0' ? '~' : '/';
      ++i;
    } else if (rest.size() > 2 && rest[0] == '%') {
      plain += static_cast<char>(std::strtol(std::string(rest.substr(1, 2)).c_str(), nullptr, 16));
      i += 2;
    } else {
      plain += rest[0];
    }
  }
  return plain;
}

}  // namespace

SchemaTerms::SchemaTerms(const JsonValue& root, std::string field)
    : root_(root), field_(std::move(field)) {
  paths_[&root] = field_;
  if (!root.is_object() && !root.is_boolean()) {
    throw Error(ErrorCode::kUsage, fmt::format("{}: expected an object, the schema", field_));
  }
}

const JsonValue* SchemaTerms::Child(const JsonValue& parent, const JsonValue& child,
                                    const std::string& step) {
  const auto [place, is_new] = paths_.try_emplace(&child);
  if (is_new) place->second = fmt::format("{}.{}", PathOf(parent), step);
  if (!child.is_object() && !child.is_boolean()) {
    throw Error(ErrorCode::kUsage, fmt::format("{}: expected a schema, an object", place->second));
  }
  return &child;
}

const std::string& SchemaTerms::PathOf(const JsonValue& schema) const {
  const auto found = paths_.find(&schema);
  return found == paths_.end() ? field_ : found->second;
}

std::string SchemaTerms::Place(const JsonValue& schema, std::string_view key) const {
  return key.empty() ? PathOf(schema) : fmt::format("{}.{}", PathOf(schema), key);
}

void SchemaTerms::Refuse(const JsonValue& schema, std::string_view key,
                         const std::string& what) const {
  throw Error(ErrorCode::kUsage, fmt::format("{}: {}", Place(schema, key), what));
}

void SchemaTerms::Charge(size_t steps) {
  if (steps > work_) {
    throw Error(ErrorCode::kUsage, fmt::format("{}: the schema is too large to be bound", field_));
  }
  work_ -= steps;
}

const CharAutomaton& SchemaTerms::Pattern(std::string_view pattern, bool whole) {
  constexpr size_t kOverhead = 2'000;
  const auto key = std::pair(std::string(pattern), whole);
  const auto known = patterns_.find(key);
  if (known != patterns_.end()) return known->second;
  Charge(std::min(kOverhead, work_));
  return patterns_.emplace(key, CompilePattern(pattern, whole, &work_)).first->second;
}

void SchemaTerms::Unbound(const JsonValue& schema, std::string_view key,
                          const std::string& reason) {
  std::string note = Place(schema, key);
  if (!reason.empty()) note += fmt::format(" ({})", reason);
  const bool is_known = std::ranges::find(unbound_, note) != unbound_.end();
  if (!is_known && unbound_.size() < kMaxUnbound) unbound_.push_back(std::move(note));
}

std::optional<uint32_t> SchemaTerms::Count(const JsonValue& schema, const char* key) const {
  const JsonValue* value = schema.Find(key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->AsDouble() : -1;
  if (!(number >= 0) ||
      number != static_cast<double>(static_cast<uint64_t>(std::min(number, 1e18)))) {
    Refuse(schema, key, "expected a whole number, 0 or more");
  }
  return static_cast<uint32_t>(std::min(number, static_cast<double>(kMaxCount)));
}

std::optional<Decimal> SchemaTerms::Number(const JsonValue& schema, const char* key) const {
  const JsonValue* value = schema.Find(key);
  // In older drafts exclusiveMinimum is true or false.
  if (value == nullptr || (value->is_boolean() && std::string_view(key).starts_with("exclusive"))) {
    return std::nullopt;
  }
  if (!value->is_number()) Refuse(schema, key, "expected a number");
  std::optional<Decimal> decimal = ParseDecimal(value->text);
  if (!decimal) Refuse(schema, key, "expected a number of at most 400 digits");
  return decimal;
}

const std::string* SchemaTerms::String(const JsonValue& schema, const char* key) const {
  const JsonValue* value = schema.Find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_string()) Refuse(schema, key, "expected a string");
  return &value->text;
}
const JsonValue* SchemaTerms::Array(const JsonValue& schema, const char* key) const {
  const JsonValue* value = schema.Find(key);
  if (value != nullptr && !value->is_array()) Refuse(schema, key, "expected an array");
  return value;
}
const JsonValue* SchemaTerms::Object(const JsonValue& schema, const char* key) const {
  const JsonValue* value = schema.Find(key);
  if (value != nullptr && !value->is_object()) Refuse(schema, key, "expected an object");
  return value;
}
bool SchemaTerms::IsTrue(const JsonValue& schema, const char* key) {
  const JsonValue* value = schema.Find(key);
  return value != nullptr && value->is_boolean() && value->boolean;
}

// Once for each schema: lists what is not bound whatever stands around it.
void SchemaTerms::CheckKeywords(const JsonValue& schema) {
  if (!checked_.insert(&schema).second) return;
  for (const JsonMember& member : schema.members) {
    const std::string& key = member.key;
    if (key.starts_with("x-") || KnownKeywords().contains(key)) continue;
    // Without `if` the keywords `then` and `else` say nothing; they are named with it.
    Unbound(schema, key);
  }
  if (IsTrue(schema, "uniqueItems")) Unbound(schema, "uniqueItems");
  const JsonValue* dependencies = Object(schema, "dependencies");
  const bool has_schemas =
      dependencies != nullptr && std::ranges::any_of(dependencies->members, [](const auto& member) {
        return !member.value.is_array();
      });
  if (has_schemas) Unbound(schema, "dependencies");
}

bool SchemaTerms::Expand(const Conjunction& terms, Conjunction* expanded) {
  std::vector<SchemaTerm> pending(terms.rbegin(), terms.rend());
  while (!pending.empty()) {
    const SchemaTerm term = pending.back();
    pending.pop_back();
    const JsonValue& schema = *term.schema;
    if (schema.is_boolean() && !schema.boolean) return false;
    if (schema.is_boolean()) continue;
    const auto known = std::ranges::find(*expanded, term.schema, &SchemaTerm::schema);
    if (known != expanded->end()) {
      // One of its alternatives leads back to a schema: that adds no text that fits it.
      const uint8_t chosen = known->taken & (SchemaTerm::kAnyOf | SchemaTerm::kOneOf);
      if (chosen != 0 && term.taken == 0) return false;
      known->taken |= term.taken;
      continue;
    }
    if (expanded->size() == kMaxTerms) Refuse(schema, "", "too many schemas hold together");
    CheckKeywords(schema);
    Charge(expanded->size());
    expanded->push_back(term);
    expanded->back().taken |= SchemaTerm::kExpanded;
    if ((term.taken & SchemaTerm::kExpanded) != 0) continue;
    if (const JsonValue* all = Array(schema, "allOf")) {
      for (size_t i = all->items.size(); i-- > 0;) {
        pending.push_back({Child(schema, all->items[i], fmt::format("allOf[{}]", i)), 0});
      }
    }
    for (const char* key : {"$dynamicRef", "$ref"}) {
      if (const std::string* reference = String(schema, key)) {
        pending.push_back({Resolve(schema, *reference), 0});
      }
    }
  }
  return true;
}

// "#/$defs/name" is a place in the schema, "#name" an anchor.
const JsonValue* SchemaTerms::Resolve(const JsonValue& schema, const std::string& reference) {
  std::string_view path = reference;
  const JsonValue* id = root_.Find("$id");
  if (id != nullptr && !id->text.empty() && path.starts_with(id->text)) {
    path.remove_prefix(id->text.size());
  }
  const bool is_local = path.starts_with('#') || (path.empty() && !reference.empty());
  if (!is_local)
    Refuse(schema, "$ref",
           fmt::format("expected a place in this schema (#/...), found {}", reference));
  path.remove_prefix(std::min<size_t>(path.size(), 1));
  if (!path.empty() && path[0] != '/') {
    Charge(100'000);  // the search may go through the whole schema
    const JsonValue* anchor = FindAnchor(root_, path, field_);
    if (anchor == nullptr) Refuse(schema, "$ref", fmt::format("{} leads nowhere", reference));
    return anchor;
  }
  const JsonValue* place = &root_;
  std::string where = field_;
  while (path.starts_with('/')) {
    path.remove_prefix(1);
    const size_t end = std::min(path.find('/'), path.size());
    const std::string step = Unescaped(path.substr(0, end));
    const bool is_index = place->is_array() && !step.empty() && step.size() < 7 &&
                          step.find_first_not_of("0123456789") == std::string::npos;
    const size_t index = is_index ? std::strtoull(step.c_str(), nullptr, 10) : SIZE_MAX;
    place = is_index ? (index < place->items.size() ? &place->items[index] : nullptr)
                     : place->Find(step);
    if (place == nullptr) Refuse(schema, "$ref", fmt::format("{} leads nowhere", reference));
    where += fmt::format(".{}", step);
    path.remove_prefix(end);
  }
  paths_.try_emplace(place, where);
  if (!place->is_object() && !place->is_boolean()) {
    Refuse(schema, "$ref", fmt::format("{} is no schema", reference));
  }
  return place;
}

const JsonValue* SchemaTerms::FindAnchor(const JsonValue& place, std::string_view name,
                                         const std::string& path) {
  for (const char* key : {"$anchor", "$dynamicAnchor", "$id"}) {
    const JsonValue* anchor = place.Find(key);
    if (anchor == nullptr || !anchor->is_string()) continue;
    std::string_view text = anchor->text;
    if (text.starts_with('#')) text.remove_prefix(1);
    if (text != name) continue;
    paths_.try_emplace(&place, path);
    return &place;
  }
  for (const JsonMember& member : place.members) {
    const JsonValue* found = FindAnchor(member.value, name, fmt::format("{}.{}", path, member.key));
    if (found != nullptr) return found;
  }
  for (const JsonValue& item : place.items) {
    if (const JsonValue* found = FindAnchor(item, name, path)) return found;
  }
  return nullptr;
}

}  // namespace thimble
