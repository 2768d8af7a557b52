#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

struct JsonMember;

/// A JSON value that keeps what a conversation needs exactly: members in the order of the text, and
/// numbers as Python would write them, integers of any length.
struct JsonValue {
  enum class Kind : uint8_t { kNull, kBoolean, kInteger, kReal, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  std::string text;  // a string's characters, or a number: 12, 1.5, 1e-05
  std::vector<JsonValue> items;
  std::vector<JsonMember> members;  // keys are distinct

  bool is_null() const { return kind == Kind::kNull; }
  bool is_boolean() const { return kind == Kind::kBoolean; }
  bool is_integer() const { return kind == Kind::kInteger; }
  bool is_number() const { return kind == Kind::kInteger || kind == Kind::kReal; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_object() const { return kind == Kind::kObject; }

  /// The member `key` of an object; null where there is none or this is no object.
  const JsonValue* Find(std::string_view key) const;
  /// The same, but a member that is null counts as absent.
  const JsonValue* FindSet(std::string_view key) const;
  /// A number as a double.
  double AsDouble() const;

  static JsonValue String(std::string text);
  bool operator==(const JsonValue& other) const;
};

struct JsonMember {
  std::string key;
  JsonValue value;
  bool operator==(const JsonMember& other) const;
};

/// The deepest nesting of arrays and objects that is accepted by default.
constexpr size_t kMaxJsonDepth = 200;

/// What ParseJson accepts.
struct JsonLimits {
  size_t max_depth = kMaxJsonDepth;
  bool distinct_keys = false;  // refuse an object that has a key twice
};

/// The value that `text` spells. A key that comes twice keeps its first place and its last value,
/// unless `limits` refuses it. An escaped surrogate without its other half becomes U+FFFD.
/// Error(kUsage) where the text is not JSON in UTF-8, or breaks a limit. Linear.
JsonValue ParseJson(std::string_view text, const JsonLimits& limits = {});

/// Whether `text` is JSON that ParseJson takes, without lone surrogates.
bool IsJson(std::string_view text);

enum class JsonStyle : uint8_t {
  kCompact,        // {"b":1,"a":[2]}
  kCompactSorted,  // {"a":[2],"b":1}: keys by code point, at every depth
  kPython,         // {"b": 1, "a": [2]}: Python's json.dumps(ensure_ascii=False)
};
std::string WriteJson(const JsonValue& value, JsonStyle style);

/// Appends `text`, valid UTF-8, as the inside of a JSON string: only quotes, backslashes and
/// controls are escaped. Pieces may be escaped one by one.
void EscapeJson(std::string_view text, std::string* out);

/// A finite double as Python's repr: the shortest digits that read back as the same number.
std::string PythonReal(double value);

}  // namespace thimble
