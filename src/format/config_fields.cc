#include "format/config_fields.h"

#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "format/json_events.h"

namespace thimble {
namespace {

constexpr uint64_t kIntegerLimit = uint64_t{1} << 31;
constexpr size_t kShownCharacters = 80;

[[noreturn]] void FailFile(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kBadModel,
              source + ": " + what + "; the file is damaged or was edited: download it again");
}

// Sees what the parsed tree no longer shows: keys given twice, and nesting before it grows.
class DuplicateGuard {
 public:
  explicit DuplicateGuard(const std::string& source) : source_(source) {}

  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (depth > static_cast<int>(kMaxJsonDepth)) FailFile(source_, "nested too deeply");
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        FailFile(source_, "field '" + key + "': expected once, found twice");
      }
    }
    return true;
  }

 private:
  const std::string& source_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

std::string Shown(const Json* value) {
  if (value == nullptr) return "nothing";
  std::string text = value->dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kShownCharacters) text = text.substr(0, kShownCharacters) + "...";
  return text;
}

template <typename T, typename Reader>
std::optional<T> Maybe(bool has, const Reader& read) {
  return has ? std::optional<T>(read()) : std::nullopt;
}

}  // namespace

Json ParseConfigJson(std::string_view text, const std::string& source) {
  // The library would take a NUL byte for the end of the text.
  if (text.find('\0') != std::string_view::npos) {
    FailFile(source, "expected JSON, found a NUL byte");
  }
  Json root;
  DuplicateGuard guard(source);
  try {
    root = Json::parse(text.begin(), text.end(), std::ref(guard));
  } catch (const Json::exception& error) {
    FailFile(source, std::string("expected JSON, found something else (") + error.what() + ")");
  }
  if (!root.is_object()) FailFile(source, "expected a JSON object, found " + Shown(&root));
  return root;
}

ConfigFields::ConfigFields(const Json& object, std::string source, std::string prefix)
    : object_(&object), source_(std::move(source)), prefix_(std::move(prefix)) {}

const Json* ConfigFields::Find(const char* key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void ConfigFields::Fail(const char* key, const std::string& expected) const {
  throw Error(ErrorCode::kBadModel,
              source_ + ": field '" + prefix_ + key + "': expected " + expected + ", found " +
                  Shown(Find(key)) +
                  "; check that the file belongs to this model, or download it again");
}

void ConfigFields::Check(bool holds, const char* key, const std::string& expected) const {
  if (!holds) Fail(key, expected);
}

size_t ConfigFields::Integer(const Json& value, const char* key, size_t least) const {
  // The parser marks every integer without a sign as unsigned, and "4.0" as a float.
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() >= least &&
                    value.get<uint64_t>() < kIntegerLimit;
  Check(fits, key, "integers from " + std::to_string(least) + " to 2^31 - 1");
  return value.get<size_t>();
}

size_t ConfigFields::Positive(const char* key) const {
  const Json* value = Find(key);
  Check(value != nullptr, key, "an integer from 1 to 2^31 - 1");
  return Integer(*value, key, 1);
}

size_t ConfigFields::NonNegative(const char* key) const {
  const Json* value = Find(key);
  Check(value != nullptr, key, "an integer from 0 to 2^31 - 1");
  return Integer(*value, key, 0);
}

std::optional<size_t> ConfigFields::MaybePositive(const char* key) const {
  return Maybe<size_t>(Has(key), [&] { return Positive(key); });
}

std::optional<size_t> ConfigFields::MaybeNonNegative(const char* key) const {
  return Maybe<size_t>(Has(key), [&] { return NonNegative(key); });
}

uint64_t ConfigFields::Size(const char* key, uint64_t most) const {
  const Json* value = Find(key);
  Check(value != nullptr && value->is_number_unsigned() && value->get<uint64_t>() <= most, key,
        "an integer from 0 to " + std::to_string(most));
  return value->get<uint64_t>();
}

float ConfigFields::Number(const char* key) const {
  const Json* value = Find(key);
  Check(value != nullptr && value->is_number(), key, "a number");
  const float number = value->get<float>();
  Check(std::isfinite(number), key, "a finite float32");
  return number;
}

std::optional<float> ConfigFields::MaybeNumber(const char* key) const {
  return Maybe<float>(Has(key), [&] { return Number(key); });
}

bool ConfigFields::Bool(const char* key) const {
  const Json* value = Find(key);
  Check(value != nullptr && value->is_boolean(), key, "true or false");
  return value->get<bool>();
}

std::optional<bool> ConfigFields::MaybeBool(const char* key) const {
  return Maybe<bool>(Has(key), [&] { return Bool(key); });
}

std::string ConfigFields::Text(const char* key) const {
  const Json* value = Find(key);
  Check(value != nullptr && value->is_string(), key, "a string");
  return value->get<std::string>();
}

std::optional<std::string> ConfigFields::MaybeText(const char* key) const {
  return Maybe<std::string>(Has(key), [&] { return Text(key); });
}

std::vector<size_t> ConfigFields::PositiveList(const char* key) const {
  const Json* value = Find(key);
  Check(value != nullptr && value->is_array(), key, "a list of integers");
  std::vector<size_t> list;
  for (const Json& item : *value) list.push_back(Integer(item, key, 1));
  return list;
}

std::vector<std::string> ConfigFields::TextList(const char* key) const {
  const Json* value = Find(key);
  Check(value != nullptr && value->is_array(), key, "a list of strings");
  std::vector<std::string> list;
  for (const Json& item : *value) {
    Check(item.is_string(), key, "a list of strings");
    list.push_back(item.get<std::string>());
  }
  return list;
}

ConfigFields ConfigFields::Object(const char* key) const {
  const Json* value = Find(key);
  Check(value != nullptr && value->is_object(), key, "an object");
  return {*value, source_, prefix_ + key + "."};
}

std::optional<ConfigFields> ConfigFields::MaybeObject(const char* key) const {
  return Maybe<ConfigFields>(Has(key), [&] { return Object(key); });
}

std::vector<size_t> ConfigFields::Ids(const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {Integer(*value, key, 0)};
  std::vector<size_t> ids;
  for (const Json& item : *value) ids.push_back(Integer(item, key, 0));
  return ids;
}

std::vector<ConfigFields> ConfigFields::ObjectList(const char* key) const {
  const Json* value = Find(key);
  Check(value != nullptr && value->is_array(), key, "a list of objects");
  std::vector<ConfigFields> list;
  for (const Json& item : *value) {
    Check(item.is_object(), key, "a list of objects");
    const std::string place = prefix_ + key + "[" + std::to_string(list.size()) + "].";
    list.emplace_back(item, source_, place);
  }
  return list;
}

std::vector<ConfigFields> ConfigFields::Objects() const {
  std::vector<ConfigFields> objects;
  for (const auto& item : object_->items()) objects.push_back(Object(item.key().c_str()));
  return objects;
}

}  // namespace thimble
