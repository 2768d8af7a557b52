#pragma once

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>
#include <string>

#include "json/json_value.h"

namespace thimble {

/// Whether a value fits a schema, by the letter of JSON Schema for the keywords that tests use.
/// Shares nothing with the grammar: patterns go through std::regex, so they are ASCII.
class SchemaValidator {
 public:
  explicit SchemaValidator(const JsonValue& root) : root_(root) {}

  bool Fits(const JsonValue& value, const JsonValue& schema) const {
    if (schema.is_boolean()) return schema.boolean;
    return std::ranges::all_of(schema.members, [&](const JsonMember& keyword) {
      return Holds(value, schema, keyword.key, keyword.value);
    });
  }
  bool Fits(const JsonValue& value) const { return Fits(value, root_); }

 private:
  static size_t Length(const std::string& text) {
    return static_cast<size_t>(
        std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
  }
  static bool HasType(const JsonValue& value, const std::string& type) {
    if (type == "integer") return value.is_integer();
    if (type == "number") return value.is_number();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (type == "array") return value.is_array();
    return type == "object" && value.is_object();
  }
  bool Any(const JsonValue& value, const JsonValue& options) const {
    return std::ranges::any_of(options.items, [&](const auto& one) { return Fits(value, one); });
  }
  static bool Matches(const std::string& text, const std::string& pattern) {
    return std::regex_search(text, std::regex(pattern));
  }

  bool Holds(const JsonValue& value, const JsonValue& schema, const std::string& key,
             const JsonValue& is) const {
    if (key == "type") {
      if (value.is_null() && schema.Find("nullable") != nullptr) return true;
      if (is.is_string()) return HasType(value, is.text);
      return std::ranges::any_of(is.items,
                                 [&](const auto& one) { return HasType(value, one.text); });
    }
    if (key == "enum") {
      return std::ranges::find(is.items, value) != is.items.end();
    }
    if (key == "const") return value == is;
    if (key == "anyOf" || key == "oneOf") return Any(value, is);
    if (key == "allOf") {
      return std::ranges::all_of(is.items, [&](const auto& one) { return Fits(value, one); });
    }
    if (key == "$ref") return Fits(value, Resolve(is.text));
    if (value.is_number()) return NumberHolds(value.AsDouble(), key, is);
    if (value.is_string()) {
      if (key == "minLength") return static_cast<double>(Length(value.text)) >= is.AsDouble();
      if (key == "maxLength") return static_cast<double>(Length(value.text)) <= is.AsDouble();
      if (key == "pattern") return Matches(value.text, is.text);
    }
    if (value.is_array()) return ArrayHolds(value, schema, key, is);
    if (value.is_object()) return ObjectHolds(value, schema, key, is);
    return true;
  }
  static bool NumberHolds(double number, const std::string& key, const JsonValue& is) {
    if (key == "minimum") return number >= is.AsDouble();
    if (key == "maximum") return number <= is.AsDouble();
    if (key == "exclusiveMinimum") return number > is.AsDouble();
    if (key == "exclusiveMaximum") return number < is.AsDouble();
    if (key == "multipleOf") {
      const double ratio = number / is.AsDouble();
      return std::abs(ratio - std::round(ratio)) < 1e-6;
    }
    return true;
  }
  bool ArrayHolds(const JsonValue& value, const JsonValue& schema, const std::string& key,
                  const JsonValue& is) const {
    const auto count = static_cast<double>(value.items.size());
    if (key == "minItems") return count >= is.AsDouble();
    if (key == "maxItems") return count <= is.AsDouble();
    const JsonValue* prefix = schema.Find("prefixItems");
    const size_t first = prefix == nullptr ? 0 : prefix->items.size();
    for (size_t i = 0; i < value.items.size(); ++i) {
      if (key == "prefixItems" && i < first && !Fits(value.items[i], is.items[i])) return false;
      if (key == "items" && i >= first && !Fits(value.items[i], is)) return false;
    }
    return true;
  }
  bool ObjectHolds(const JsonValue& value, const JsonValue& schema, const std::string& key,
                   const JsonValue& is) const {
    const auto count = static_cast<double>(value.members.size());
    if (key == "minProperties") return count >= is.AsDouble();
    if (key == "maxProperties") return count <= is.AsDouble();
    if (key == "required") {
      return std::ranges::all_of(
          is.items, [&](const auto& name) { return value.Find(name.text) != nullptr; });
    }
    if (key == "dependentRequired") {
      return std::ranges::all_of(is.members, [&](const JsonMember& need) {
        return value.Find(need.key) == nullptr ||
               ObjectHolds(value, schema, "required", need.value);
      });
    }
    return std::ranges::all_of(value.members, [&](const JsonMember& member) {
      if (key == "propertyNames") return Fits(JsonValue::String(member.key), is);
      const JsonValue* properties = schema.Find("properties");
      const JsonValue* own = properties == nullptr ? nullptr : properties->Find(member.key);
      if (key == "properties") return own == nullptr || Fits(member.value, *own);
      const JsonValue* patterns = schema.Find("patternProperties");
      bool matched = own != nullptr;
      for (size_t i = 0; patterns != nullptr && i < patterns->members.size(); ++i) {
        if (!Matches(member.key, patterns->members[i].key)) continue;
        matched = true;
        if (key == "patternProperties" && !Fits(member.value, patterns->members[i].value))
          return false;
      }
      return key != "additionalProperties" || matched || Fits(member.value, is);
    });
  }

  const JsonValue& Resolve(std::string path) const {
    const JsonValue* place = &root_;
    path.erase(0, 1);
    while (!path.empty()) {
      const size_t end = std::min(path.find('/', 1), path.size());
      place = place->Find(path.substr(1, end - 1));
      path.erase(0, end);
    }
    return *place;
  }

  const JsonValue& root_;
};

}  // namespace thimble
