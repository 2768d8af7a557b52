#include "json/json_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <utility>

namespace thimble {
namespace {

constexpr size_t kShownBytes = 80;
// Doubles count integers one by one up to here.
constexpr double kMaxExactInteger = 9007199254740992.0;

// The value as JSON, cut where it is long, though never within a character.
std::string Shown(const JsonValue* value) {
  if (value == nullptr) return "nothing";
  std::string text = WriteJson(*value, JsonStyle::kCompact);
  if (text.size() <= kShownBytes) return text;
  size_t end = kShownBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

std::string DescribeRange(uint64_t least, uint64_t most) {
  if (most == JsonFields::kMaxInteger) return fmt::format("an integer from {} to 2^31 - 1", least);
  return fmt::format("an integer from {} to {}", least, most);
}

}  // namespace

JsonOrigin RequestOrigin() {
  return {.source = {}, .code = ErrorCode::kUsage, .whole_reals = true};
}

JsonFields::JsonFields(const JsonValue& object, JsonOrigin origin, std::string prefix)
    : object_(&object), origin_(std::move(origin)), prefix_(std::move(prefix)) {}

void JsonFields::Fail(std::string_view key, std::string_view expected) const {
  Fail(key, expected, "check that the file belongs to this model, or download it again");
}

void JsonFields::Fail(std::string_view key, std::string_view expected,
                      std::string_view remedy) const {
  const std::string found = Shown(Find(key));
  if (origin_.source.empty()) {
    throw Error(origin_.code,
                fmt::format("{}{}: expected {}, found {}", prefix_, key, expected, found));
  }
  throw Error(origin_.code, fmt::format("{}: field '{}{}': expected {}, found {}; {}",
                                        origin_.source, prefix_, key, expected, found, remedy));
}

void JsonFields::Check(bool holds, std::string_view key, std::string_view expected) const {
  if (!holds) Fail(key, expected);
}

const JsonValue& JsonFields::Require(bool fits, std::string_view key,
                                     std::string_view expected) const {
  Check(fits, key, expected);
  return *Find(key);
}

std::optional<uint64_t> JsonFields::IntegerOf(const JsonValue& value) const {
  uint64_t number = 0;
  const char* end = value.text.data() + value.text.size();
  if (value.is_integer()) {
    const auto [rest, error] = std::from_chars(value.text.data(), end, number);
    return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
  }
  if (!value.is_number() || !origin_.whole_reals) return std::nullopt;
  const double real = value.AsDouble();
  const bool whole = real >= 0 && real <= kMaxExactInteger && real == std::floor(real);
  return whole ? std::optional(static_cast<uint64_t>(real)) : std::nullopt;
}

uint64_t JsonFields::IntegerIn(const JsonValue& value, std::string_view key, uint64_t least,
                               uint64_t most) const {
  const std::optional<uint64_t> number = IntegerOf(value);
  Check(number && *number >= least && *number <= most, key, DescribeRange(least, most));
  return *number;
}

uint64_t JsonFields::Integer(std::string_view key, uint64_t least, uint64_t most) const {
  return IntegerIn(Require(Has(key), key, DescribeRange(least, most)), key, least, most);
}

std::optional<uint64_t> JsonFields::MaybeInteger(std::string_view key, uint64_t least,
                                                 uint64_t most) const {
  return Has(key) ? std::optional(Integer(key, least, most)) : std::nullopt;
}

std::optional<size_t> JsonFields::MaybePositive(std::string_view key) const {
  return MaybeInteger(key, 1, kMaxInteger);
}

std::optional<size_t> JsonFields::MaybeNonNegative(std::string_view key) const {
  return MaybeInteger(key, 0, kMaxInteger);
}

float JsonFields::Number(std::string_view key) const {
  const JsonValue* value = Find(key);
  const bool fits = value != nullptr && value->is_number();
  const auto number = static_cast<float>(Require(fits, key, "a number").AsDouble());
  Check(std::isfinite(number), key, "a finite float32");
  return number;
}

std::optional<float> JsonFields::MaybeNumber(std::string_view key) const {
  return Has(key) ? std::optional(Number(key)) : std::nullopt;
}

std::optional<double> JsonFields::MaybeNumberIn(std::string_view key, double least,
                                                double most) const {
  const JsonValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->AsDouble() : std::nan("");
  Check(number >= least && number <= most, key, fmt::format("a number from {} to {}", least, most));
  return number;
}

bool JsonFields::Bool(std::string_view key) const {
  const JsonValue* value = Find(key);
  return Require(value != nullptr && value->is_boolean(), key, "true or false").boolean;
}

std::optional<bool> JsonFields::MaybeBool(std::string_view key) const {
  return Has(key) ? std::optional(Bool(key)) : std::nullopt;
}

std::string JsonFields::Text(std::string_view key) const {
  const JsonValue* value = Find(key);
  return Require(value != nullptr && value->is_string(), key, "a string").text;
}

std::optional<std::string> JsonFields::MaybeText(std::string_view key) const {
  return Has(key) ? std::optional(Text(key)) : std::nullopt;
}

std::vector<size_t> JsonFields::PositiveList(std::string_view key) const {
  const JsonValue* value = Find(key);
  const bool fits = value != nullptr && value->is_array();
  std::vector<size_t> list;
  for (const JsonValue& item : Require(fits, key, "a list of integers").items) {
    list.push_back(IntegerIn(item, key, 1, kMaxInteger));
  }
  return list;
}

std::vector<std::string> JsonFields::TextList(std::string_view key) const {
  const JsonValue* value = Find(key);
  const bool fits = value != nullptr && value->is_array();
  std::vector<std::string> list;
  for (const JsonValue& item : Require(fits, key, "a list of strings").items) {
    Check(item.is_string(), key, "a list of strings");
    list.push_back(item.text);
  }
  return list;
}

std::vector<size_t> JsonFields::Ids(std::string_view key) const {
  const JsonValue* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {IntegerIn(*value, key, 0, kMaxInteger)};
  std::vector<size_t> ids;
  for (const JsonValue& item : value->items) ids.push_back(IntegerIn(item, key, 0, kMaxInteger));
  return ids;
}

JsonFields JsonFields::Inner(const JsonValue& object, std::string_view place) const {
  return {object, origin_, fmt::format("{}{}.", prefix_, place)};
}

JsonFields JsonFields::Object(std::string_view key) const {
  const JsonValue* value = Find(key);
  return Inner(Require(value != nullptr && value->is_object(), key, "an object"), key);
}

std::optional<JsonFields> JsonFields::MaybeObject(std::string_view key) const {
  return Has(key) ? std::optional(Object(key)) : std::nullopt;
}

std::vector<JsonFields> JsonFields::ObjectList(std::string_view key) const {
  const JsonValue* value = Find(key);
  const bool fits = value != nullptr && value->is_array();
  std::vector<JsonFields> list;
  for (const JsonValue& item : Require(fits, key, "a list of objects").items) {
    Check(item.is_object(), key, "a list of objects");
    list.push_back(Inner(item, fmt::format("{}[{}]", key, list.size())));
  }
  return list;
}

std::vector<JsonFields> JsonFields::Objects() const {
  std::vector<JsonFields> objects;
  for (const JsonMember& member : object_->members) objects.push_back(Object(member.key));
  return objects;
}

}  // namespace thimble
