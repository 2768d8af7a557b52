#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

using Json = nlohmann::json;

/// Parses a configuration file: an object, without repeated keys, of bounded nesting.
/// Error(kBadModel) names `source` and the place.
Json ParseConfigJson(std::string_view text, const std::string& source);

/// The fields of one JSON object, read with their type and range checked. `null` counts as absent,
/// as in the published files. Every failure is Error(kBadModel) naming file, field, expected and
/// found. Borrows the object.
class ConfigFields {
 public:
  /// `prefix` leads to the object in messages: "" or "text_config.".
  ConfigFields(const Json& object, std::string source, std::string prefix);

  /// An integer in [1, 2^31).
  size_t Positive(const char* key) const;
  /// An integer in [0, 2^31).
  size_t NonNegative(const char* key) const;
  /// The same, or nothing where the field is absent.
  std::optional<size_t> MaybePositive(const char* key) const;
  std::optional<size_t> MaybeNonNegative(const char* key) const;
  /// An integer in [0, most], for sizes of files.
  uint64_t Size(const char* key, uint64_t most) const;
  /// A finite number.
  float Number(const char* key) const;
  std::optional<float> MaybeNumber(const char* key) const;
  bool Bool(const char* key) const;
  std::optional<bool> MaybeBool(const char* key) const;
  std::string Text(const char* key) const;
  std::optional<std::string> MaybeText(const char* key) const;
  /// A list of integers in [1, 2^31).
  std::vector<size_t> PositiveList(const char* key) const;
  std::vector<std::string> TextList(const char* key) const;
  ConfigFields Object(const char* key) const;
  std::optional<ConfigFields> MaybeObject(const char* key) const;
  /// One id, a list of ids, or absent (an empty list). Ids lie in [0, 2^31).
  std::vector<size_t> Ids(const char* key) const;
  /// A list of objects.
  std::vector<ConfigFields> ObjectList(const char* key) const;
  /// Every field of this object, itself an object.
  std::vector<ConfigFields> Objects() const;

  /// True where the field is there and not null.
  bool Has(const char* key) const { return Find(key) != nullptr; }
  /// Fails unless `holds`; `expected` completes "expected ...", found is the field's value.
  void Check(bool holds, const char* key, const std::string& expected) const;
  /// "<source>: field '<prefix><key>': expected <expected>, found <value>".
  [[noreturn]] void Fail(const char* key, const std::string& expected) const;

 private:
  const Json* Find(const char* key) const;
  size_t Integer(const Json& value, const char* key, size_t least) const;

  const Json* object_;
  std::string source_;
  std::string prefix_;
};

}  // namespace thimble
