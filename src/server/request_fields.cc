#include "server/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>
#include <utility>

#include "base/error.h"

namespace thimble::server {
namespace {

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxTopK = size_t{1} << 31;

// What a message shows of a value.
std::string Shown(const JsonValue& value) {
  constexpr size_t kMaxShown = 60;
  const std::string text = WriteJson(value, JsonStyle::kPython);
  return text.size() > kMaxShown ? text.substr(0, kMaxShown) + "..." : text;
}

[[noreturn]] void RefuseValue(const std::string& field, const std::string& expected,
                              const JsonValue& found) {
  Refuse(field, fmt::format("{}, found {}", expected, Shown(found)));
}

bool IsMinusOne(const JsonValue& value) { return FindInteger(value) == -1.0; }

uint64_t ReadSeed(const JsonValue& seed) {
  const auto number = FindInteger(seed);
  if (!number || *number < -9.3e18 || *number > 1.85e19) RefuseValue("seed", "an integer", seed);
  if (*number < 0) return static_cast<uint64_t>(static_cast<int64_t>(*number));
  // The digits, which a double need not hold.
  return seed.is_integer() ? std::strtoull(seed.text.c_str(), nullptr, 10)
                           : static_cast<uint64_t>(*number);
}

uint64_t DrawSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// {"ID": BIAS, ...}, or [[ID, BIAS], ...].
std::vector<LogitBias> ReadBias(const JsonValue& field, const ServedModel& model) {
  const std::string expected =
      fmt::format("an object from token ids below {} to numbers from -100 to 100",
                  model.tokenizer->vocab_size());
  std::vector<LogitBias> biases;
  const auto add = [&](const std::string& id_text, const JsonValue& bias) {
    TokenId id = 0;
    const char* end = id_text.data() + id_text.size();
    const auto [parsed, error] = std::from_chars(id_text.data(), end, id);
    const bool valid = error == std::errc() && parsed == end && id < model.tokenizer->vocab_size();
    if (!valid || !bias.is_number() || std::abs(bias.AsDouble()) > 100) {
      RefuseValue("logit_bias", expected, field);
    }
    biases.push_back({id, static_cast<float>(bias.AsDouble())});
  };
  if (!field.is_object() && !field.is_array()) RefuseValue("logit_bias", expected, field);
  for (const JsonMember& member : field.members) add(member.key, member.value);
  for (const JsonValue& pair : field.items) {
    if (pair.items.size() != 2) RefuseValue("logit_bias", expected, field);
    add(pair.items[0].text, pair.items[1]);
  }
  return biases;
}

std::vector<TokenId> ReadStopIds(const RequestFields& fields, const ServedModel& model) {
  std::vector<TokenId> ids;
  const JsonValue* field = fields.Find("stop_token_ids");
  if (field == nullptr) return ids;
  for (const JsonValue& item : field->items) {
    const double id = FindInteger(item).value_or(-1);
    if (!(id >= 0 && id < model.tokenizer->vocab_size())) {
      RefuseValue("stop_token_ids",
                  fmt::format("token ids below {}", model.tokenizer->vocab_size()), item);
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  if (!field->is_array() || ids.size() > kMaxStops) {
    RefuseValue("stop_token_ids", fmt::format("an array of up to {} token ids", kMaxStops), *field);
  }
  return ids;
}

}  // namespace

void Refuse(const std::string& field, const std::string& expected) {
  throw ApiError(400, fmt::format("{}: expected {}", field, expected));
}

std::optional<double> FindInteger(const JsonValue& value) {
  if (!value.is_number()) return std::nullopt;
  const double number = value.AsDouble();
  if (!std::isfinite(number) || number != std::trunc(number)) return std::nullopt;
  return number;
}

std::optional<size_t> RequestFields::Limit(const std::string& key, size_t least) const {
  const JsonValue* value = Find(key);
  if (value == nullptr || IsMinusOne(*value)) return std::nullopt;
  const double number = FindInteger(*value).value_or(-1);
  if (!(number >= static_cast<double>(least))) {
    RefuseValue(key, fmt::format("an integer of at least {}, or -1 for no limit", least), *value);
  }
  return static_cast<size_t>(std::min(number, static_cast<double>(kMaxAnswer)));
}

const JsonValue* RequestFields::Object(const std::string& key) const {
  const JsonValue* value = Find(key);
  if (value != nullptr && !value->is_object()) RefuseValue(key, "an object", *value);
  return value;
}

std::vector<std::string> RequestFields::Stops(const std::string& key) const {
  const JsonValue* value = Find(key);
  if (value == nullptr) return {};
  std::vector<JsonValue> items = value->items;
  if (value->is_string()) items.push_back(*value);
  if ((!value->is_string() && !value->is_array()) || items.size() > kMaxStops) {
    Refuse(key, fmt::format("a string, or up to {} of them", kMaxStops));
  }
  std::vector<std::string> stops;
  for (const JsonValue& item : items) {
    if (item.is_null()) continue;
    if (!item.is_string()) RefuseValue(key, "strings", item);
    if (!item.text.empty()) stops.push_back(item.text);
  }
  return stops;
}

SamplingOptions ReadSampling(const RequestFields& fields, const ServedModel& model) {
  SamplingOptions sampling = model.sampling;
  const auto read = [&](const char* key, double least, double most, float* option) {
    if (const auto x = fields.Number(key, least, most)) *option = static_cast<float>(*x);
  };
  read("temperature", 0, 2, &sampling.temperature);
  read("min_p", 0, 1, &sampling.min_p);
  if (const auto x = fields.Number("top_p", 0, 1)) {
    // 0 means the likeliest alone, as with other servers.
    sampling.top_p = std::max(static_cast<float>(*x), 1e-6F);
  }
  const JsonValue* top_k = fields.Find("top_k");
  if (top_k != nullptr && IsMinusOne(*top_k)) {
    sampling.top_k = 0;
  } else if (top_k != nullptr) {
    sampling.top_k = *fields.Count("top_k", 0, kMaxTopK);
  }
  read("frequency_penalty", -2, 2, &sampling.frequency_penalty);
  read("presence_penalty", -2, 2, &sampling.presence_penalty);
  for (const char* key : {"repeat_penalty", "repetition_penalty"}) {
    read(key, 0.001, 1000, &sampling.repeat_penalty);
  }
  if (const JsonValue* bias = fields.Find("logit_bias"))
    sampling.logit_bias = ReadBias(*bias, model);
  const JsonValue* seed = fields.Find("seed");
  sampling.seed = seed == nullptr || IsMinusOne(*seed) ? DrawSeed() : ReadSeed(*seed);
  return sampling;
}

void ReadGeneration(const RequestFields& fields, const ServedModel& model, ApiRequest* request) {
  request->stream = fields.Boolean("stream", false);
  request->stops = fields.Stops("stop");
  request->stop_token_ids = ReadStopIds(fields, model);
  request->job.sampling = ReadSampling(fields, model);
  request->hide_reasoning = !fields.Boolean("include_reasoning", true);
  const JsonValue* reasoning = fields.Object("reasoning");
  if (reasoning != nullptr && RequestFields(*reasoning).Boolean("exclude", false)) {
    request->hide_reasoning = true;
  }
}

void FinishRequest(std::vector<TokenId> prompt, std::optional<size_t> max_tokens,
                   const ServedModel& model, ApiRequest* request) {
  if (prompt.empty()) Refuse("prompt", "at least one token");
  for (const TokenId id : prompt) {
    if (id >= model.tokenizer->vocab_size()) {
      Refuse("prompt", fmt::format("ids below {}", model.tokenizer->vocab_size()));
    }
  }
  if (prompt.size() >= model.context) {
    throw ApiError(400,
                   fmt::format("This model's maximum context length is {} tokens, but the prompt "
                               "has {}; shorten it, or serve with a larger -c",
                               model.context, prompt.size()),
                   "context_length_exceeded");
  }
  const size_t room = model.context - prompt.size();
  request->job.max_tokens = std::min(max_tokens.value_or(room), room);
  request->job.prompt = std::move(prompt);
  request->job.stop_ids = model.stop_ids;
  request->job.stop_ids.insert(request->job.stop_ids.end(), request->stop_token_ids.begin(),
                               request->stop_token_ids.end());
}

}  // namespace thimble::server
