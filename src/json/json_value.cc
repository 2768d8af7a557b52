#include "json/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace thimble {
namespace {

using Kind = JsonValue::Kind;

// Below this many members looking through them beats an index.
constexpr size_t kMaxScannedMembers = 16;

JsonValue MakeValue(Kind kind, std::string text = {}) {
  JsonValue value;
  value.kind = kind;
  value.text = std::move(text);
  return value;
}

// Builds the value from nlohmann's events; the names of the methods are nlohmann's.
class ValueBuilder {
 public:
  explicit ValueBuilder(const JsonLimits& limits) : limits_(limits) {}

  // NOLINTBEGIN(readability-identifier-naming)
  bool null() { return Put(MakeValue(Kind::kNull)); }
  bool boolean(bool b) {
    JsonValue value = MakeValue(Kind::kBoolean);
    value.boolean = b;
    return Put(std::move(value));
  }
  bool number_integer(int64_t n) { return Put(MakeValue(Kind::kInteger, std::to_string(n))); }
  bool number_unsigned(uint64_t n) { return Put(MakeValue(Kind::kInteger, std::to_string(n))); }
  bool number_float(double n, const std::string& text) {
    // An integer too long for 64 bits comes as a float, too.
    if (text.find_first_of(".eE") == std::string::npos) {
      return Put(MakeValue(Kind::kInteger, text));
    }
    return Put(MakeValue(Kind::kReal, PythonReal(n)));
  }
  bool string(std::string& text) { return Put(MakeValue(Kind::kString, std::move(text))); }
  static bool binary(std::vector<uint8_t>&) { return false; }
  bool start_object(size_t) { return Start(Kind::kObject); }
  bool start_array(size_t) { return Start(Kind::kArray); }
  bool end_object() { return End(); }
  bool end_array() { return End(); }
  bool key(std::string& text) {
    open_.back().key = std::move(text);
    if (!limits_.distinct_keys || !FindMember(open_.back())) return true;
    error_ = fmt::format("the key '{}' comes twice in an object", open_.back().key);
    return false;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
    error_ = fmt::format("not valid JSON near byte {}", position);
    return false;
  }
  // NOLINTEND(readability-identifier-naming)

  std::string& error() { return error_; }
  JsonValue& root() { return root_; }

 private:
  struct Frame {
    JsonValue value;
    std::string key;                                // of the member to come
    std::unordered_map<std::string, size_t> index;  // of members, once there are many
  };

  bool Start(Kind kind) {
    if (open_.size() == limits_.max_depth) {
      error_ = fmt::format("JSON nested deeper than {} levels", limits_.max_depth);
      return false;
    }
    open_.emplace_back();
    open_.back().value.kind = kind;
    return true;
  }

  bool End() {
    JsonValue done = std::move(open_.back().value);
    open_.pop_back();
    return Put(std::move(done));
  }

  bool Put(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.items.push_back(std::move(value));
    } else {
      PutMember(open_.back(), std::move(value));
    }
    return true;
  }

  static void PutMember(Frame& frame, JsonValue value) {
    auto& members = frame.value.members;
    if (const auto place = FindMember(frame)) {
      members[*place].value = std::move(value);
      return;
    }
    members.push_back({frame.key, std::move(value)});
    if (members.size() == kMaxScannedMembers) {
      for (size_t i = 0; i < members.size(); ++i) frame.index[members[i].key] = i;
    } else if (members.size() > kMaxScannedMembers) {
      frame.index[frame.key] = members.size() - 1;
    }
  }

  static std::optional<size_t> FindMember(const Frame& frame) {
    const auto& members = frame.value.members;
    if (members.size() >= kMaxScannedMembers) {
      const auto found = frame.index.find(frame.key);
      return found == frame.index.end() ? std::nullopt : std::optional(found->second);
    }
    const auto found = std::ranges::find(members, frame.key, &JsonMember::key);
    if (found == members.end()) return std::nullopt;
    return static_cast<size_t>(found - members.begin());
  }

  const JsonLimits& limits_;
  std::vector<Frame> open_;
  JsonValue root_;
  std::string error_;
};

void Write(const JsonValue& value, JsonStyle style, std::string* out);

void WriteMembers(const std::vector<JsonMember>& members, JsonStyle style, std::string* out) {
  std::vector<const JsonMember*> order;
  order.reserve(members.size());
  for (const JsonMember& member : members) order.push_back(&member);
  if (style == JsonStyle::kCompactSorted) {
    std::ranges::sort(order, {}, [](const JsonMember* member) { return member->key; });
  }
  const bool spaced = style == JsonStyle::kPython;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0) *out += spaced ? ", " : ",";
    *out += '"';
    EscapeJson(order[i]->key, out);
    *out += spaced ? "\": " : "\":";
    Write(order[i]->value, style, out);
  }
}

void Write(const JsonValue& value, JsonStyle style, std::string* out) {
  switch (value.kind) {
    case Kind::kNull:
      *out += "null";
      break;
    case Kind::kBoolean:
      *out += value.boolean ? "true" : "false";
      break;
    case Kind::kInteger:
    case Kind::kReal:
      *out += value.text;
      break;
    case Kind::kString:
      *out += '"';
      EscapeJson(value.text, out);
      *out += '"';
      break;
    case Kind::kArray:
      *out += '[';
      for (size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) *out += style == JsonStyle::kPython ? ", " : ",";
        Write(value.items[i], style, out);
      }
      *out += ']';
      break;
    case Kind::kObject:
      *out += '{';
      WriteMembers(value.members, style, out);
      *out += '}';
      break;
  }
}

// The unit of the escape \\uXXXX at `at`; nothing where there is none.
std::optional<uint32_t> ReadEscape(std::string_view text, size_t at) {
  if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return std::nullopt;
  uint32_t unit = 0;
  const char* first = text.data() + at + 2;
  const auto [end, error] = std::from_chars(first, first + 4, unit, 16);
  if (error != std::errc() || end != first + 4) return std::nullopt;
  return unit;
}

// The text with each escaped half of a character as the replacement character: programs that cut
// texts by UTF-16 units send such halves.
std::string ReplaceLoneSurrogates(std::string_view text) {
  const auto is_high = [](uint32_t unit) { return unit >= 0xd800 && unit < 0xdc00; };
  const auto is_low = [](uint32_t unit) { return unit >= 0xdc00 && unit < 0xe000; };
  std::string whole;
  whole.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto unit = ReadEscape(text, at);
    size_t length = 1;
    if (unit && is_high(*unit)) {
      const auto next = ReadEscape(text, at + 6);
      length = next && is_low(*next) ? 12 : 6;
    } else if (text[at] == '\\') {
      length = unit ? 6 : 2;
    }
    const bool is_lone = unit && ((is_high(*unit) && length == 6) || is_low(*unit));
    whole += is_lone ? "\\ufffd" : text.substr(at, length);
    at += length;
  }
  return whole;
}

bool MayHoldSurrogates(std::string_view text) {
  return text.find("\\ud") != std::string_view::npos || text.find("\\uD") != std::string_view::npos;
}

// The error, or an empty string.
std::string ParseInto(std::string_view text, const JsonLimits& limits, JsonValue* value) {
  // The library would take it for the end of the text and leave what follows unread.
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos) return fmt::format("not valid JSON: a NUL byte at {}", nul);
  ValueBuilder builder(limits);
  const bool whole = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  if (whole) *value = std::move(builder.root());
  return whole ? std::string() : std::move(builder.error());
}

}  // namespace

const JsonValue* JsonValue::Find(std::string_view key) const {
  const auto found = std::ranges::find(members, key, &JsonMember::key);
  return found == members.end() ? nullptr : &found->value;
}

const JsonValue* JsonValue::FindSet(std::string_view key) const {
  const JsonValue* value = Find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

double JsonValue::AsDouble() const { return std::strtod(text.c_str(), nullptr); }

JsonValue JsonValue::String(std::string text) { return MakeValue(Kind::kString, std::move(text)); }

// Not defaulted: clang 14 cannot compile that for a recursive type.
bool JsonValue::operator==(const JsonValue& other) const {
  return kind == other.kind && boolean == other.boolean && text == other.text &&
         items == other.items && members == other.members;
}

bool JsonMember::operator==(const JsonMember& other) const {
  return key == other.key && value == other.value;
}

JsonValue ParseJson(std::string_view text, const JsonLimits& limits) {
  JsonValue value;
  const std::string error = MayHoldSurrogates(text)
                                ? ParseInto(ReplaceLoneSurrogates(text), limits, &value)
                                : ParseInto(text, limits, &value);
  if (!error.empty()) throw Error(ErrorCode::kUsage, error);
  return value;
}

bool IsJson(std::string_view text) {
  JsonValue ignored;
  return ParseInto(text, {}, &ignored).empty();
}

std::string WriteJson(const JsonValue& value, JsonStyle style) {
  std::string text;
  Write(value, style, &text);
  return text;
}

void EscapeJson(std::string_view text, std::string* out) {
  constexpr std::string_view kNamed = "\"\\\n\r\t\b\f";
  constexpr std::string_view kNames = "\"\\nrtbf";
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    const size_t named = kNamed.find(c);
    if (named != std::string_view::npos) {
      *out += '\\';
      *out += kNames[named];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      *out += "\\u00";
      *out += kHex[static_cast<unsigned char>(c) >> 4];
      *out += kHex[static_cast<unsigned char>(c) & 15];
    } else {
      *out += c;
    }
  }
}

std::string PythonReal(double value) {
  std::array<char, 40> buffer;
  const auto write = [&](std::chars_format format) {
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format);
    return std::string(buffer.data(), end.ptr);
  };
  std::string scientific = write(std::chars_format::scientific);
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  // Python's float_repr_style: fixed notation for 1e-4 <= |value| < 1e16.
  if (exponent < -4 || exponent >= 16) return scientific;
  std::string fixed = write(std::chars_format::fixed);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

}  // namespace thimble
