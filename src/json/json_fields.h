#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "json/json_value.h"

namespace thimble {

/// Where an object of JSON came from, which decides how its errors read.
struct JsonOrigin {
  std::string source;  // the file; empty for a request, whose sender knows what was sent
  ErrorCode code = ErrorCode::kBadModel;
  bool whole_reals = false;  // 8.0 is an integer, as clients write them
};

/// The origin of requests: Error(kUsage), "<field>: expected ..., found ...".
JsonOrigin RequestOrigin();

/// The fields of one JSON object, read with their type and range checked. `null` counts as absent.
/// An Error with the origin's code names the field, what was expected and what was found:
/// "config.json: field 'text_config.vocab_size': expected ..., found ...; <remedy>". Borrows the
/// object. The "Maybe" forms return nothing where the field is absent; the others fail.
class JsonFields {
 public:
  /// The largest integer of the forms that name no other: 2^31 - 1.
  static constexpr uint64_t kMaxInteger = (uint64_t{1} << 31) - 1;

  /// `prefix` leads to the object in messages: "" or "text_config.".
  JsonFields(const JsonValue& object, JsonOrigin origin, std::string prefix = {});

  /// Null where the field is absent.
  const JsonValue* Find(std::string_view key) const { return object_->FindSet(key); }
  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  uint64_t Integer(std::string_view key, uint64_t least, uint64_t most) const;
  std::optional<uint64_t> MaybeInteger(std::string_view key, uint64_t least, uint64_t most) const;
  /// Integers in [1, kMaxInteger], and in [0, kMaxInteger].
  size_t Positive(std::string_view key) const { return Integer(key, 1, kMaxInteger); }
  size_t NonNegative(std::string_view key) const { return Integer(key, 0, kMaxInteger); }
  std::optional<size_t> MaybePositive(std::string_view key) const;
  std::optional<size_t> MaybeNonNegative(std::string_view key) const;
  /// A finite float32.
  float Number(std::string_view key) const;
  std::optional<float> MaybeNumber(std::string_view key) const;
  std::optional<double> MaybeNumberIn(std::string_view key, double least, double most) const;
  bool Bool(std::string_view key) const;
  std::optional<bool> MaybeBool(std::string_view key) const;
  std::string Text(std::string_view key) const;
  std::optional<std::string> MaybeText(std::string_view key) const;
  /// A list of integers in [1, kMaxInteger].
  std::vector<size_t> PositiveList(std::string_view key) const;
  std::vector<std::string> TextList(std::string_view key) const;
  /// One id, a list of ids, or absent (an empty list). Ids lie in [0, kMaxInteger].
  std::vector<size_t> Ids(std::string_view key) const;
  JsonFields Object(std::string_view key) const;
  std::optional<JsonFields> MaybeObject(std::string_view key) const;
  std::vector<JsonFields> ObjectList(std::string_view key) const;
  /// Every field of this object, itself an object.
  std::vector<JsonFields> Objects() const;
  const std::vector<JsonMember>& Members() const { return object_->members; }

  /// Fails unless `holds`; `expected` completes "expected ...", found is the field's value.
  void Check(bool holds, std::string_view key, std::string_view expected) const;
  [[noreturn]] void Fail(std::string_view key, std::string_view expected) const;
  /// The same with a remedy of its own, for what is sound and not supported.
  [[noreturn]] void Fail(std::string_view key, std::string_view expected,
                         std::string_view remedy) const;

 private:
  const JsonValue& Require(bool fits, std::string_view key, std::string_view expected) const;
  std::optional<uint64_t> IntegerOf(const JsonValue& value) const;
  uint64_t IntegerIn(const JsonValue& value, std::string_view key, uint64_t least,
                     uint64_t most) const;
  JsonFields Inner(const JsonValue& object, std::string_view place) const;

  const JsonValue* object_;
  JsonOrigin origin_;
  std::string prefix_;
};

}  // namespace thimble
