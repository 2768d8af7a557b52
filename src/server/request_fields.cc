#include "server/request_fields.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <random>
#include <set>
#include <utility>

#include "base/error.h"

namespace thimble::server {
namespace {

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxFunctionName = 256;

std::string Shown(double number) { return PythonReal(number); }

void CheckFunctionName(const JsonValue& tool, const std::string& path,
                       std::set<std::string>* names) {
  if (!tool.is_object()) Refuse(path, "an object");
  const JsonValue* type = tool.FindSet("type");
  if (type == nullptr || type->text != "function") Refuse(path + ".type", "\"function\"");
  const JsonValue* function = tool.FindSet("function");
  if (function == nullptr || !function->is_object()) Refuse(path + ".function", "an object");
  const JsonValue* name = function->FindSet("name");
  const std::string text = name != nullptr && name->is_string() ? name->text : "";
  const bool valid = !text.empty() && text.size() <= kMaxFunctionName &&
                     std::isdigit(static_cast<unsigned char>(text[0])) == 0 &&
                     std::ranges::all_of(text, [](unsigned char c) {
                       return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
                     });
  if (!valid) {
    Refuse(path + ".function.name",
           "1 to 256 letters, digits, '_', '-' or '.', not beginning with a digit");
  }
  if (!names->insert(text).second) Refuse(path + ".function.name", "a name of its own");
}

void CheckToolArray(const JsonValue& tools, const std::string& path, std::set<std::string>* names) {
  for (size_t i = 0; i < tools.items.size(); ++i) {
    CheckFunctionName(tools.items[i], path + "[" + std::to_string(i) + "]", names);
  }
}

}  // namespace

void Refuse(const std::string& field, const std::string& expected) {
  throw ApiError(400, field + ": expected " + expected);
}

JsonValue FunctionTool(std::vector<JsonMember> members) {
  JsonValue function;
  function.kind = JsonValue::Kind::kObject;
  function.members = std::move(members);
  JsonValue tool;
  tool.kind = JsonValue::Kind::kObject;
  tool.members = {{"type", JsonValue::String("function")}, {"function", std::move(function)}};
  return tool;
}

std::optional<double> RequestFields::Number(const std::string& key, double least,
                                            double most) const {
  const JsonValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->AsDouble() : std::nan("");
  if (!(number >= least && number <= most)) {
    Refuse(key, "a number from " + Shown(least) + " to " + Shown(most));
  }
  return number;
}

std::optional<size_t> RequestFields::Count(const std::string& key, size_t least,
                                           size_t most) const {
  const JsonValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_integer() ? value->AsDouble() : -1;
  if (!(number >= static_cast<double>(least) && number <= static_cast<double>(most))) {
    Refuse(key, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return static_cast<size_t>(number);
}

bool RequestFields::Boolean(const std::string& key, bool absent) const {
  const JsonValue* value = Find(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) Refuse(key, "true or false");
  return value->boolean;
}

std::string RequestFields::String(const std::string& key) const {
  const JsonValue* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) Refuse(key, "a string");
  return value->text;
}

std::vector<std::string> RequestFields::Stops(const std::string& key) const {
  const JsonValue* value = Find(key);
  if (value == nullptr) return {};
  std::vector<JsonValue> items = value->items;
  if (value->is_string()) items.push_back(*value);
  if ((!value->is_string() && !value->is_array()) || items.size() > kMaxStops) {
    Refuse(key, "a string, or up to " + std::to_string(kMaxStops) + " of them");
  }
  std::vector<std::string> stops;
  for (const JsonValue& item : items) {
    if (!item.is_string()) Refuse(key, "strings");
    if (!item.text.empty()) stops.push_back(item.text);
  }
  return stops;
}

SamplingOptions ReadSampling(const RequestFields& fields, const ServedModel& model) {
  SamplingOptions sampling = model.sampling;
  if (const auto x = fields.Number("temperature", 0, 2)) {
    sampling.temperature = static_cast<float>(*x);
  }
  if (const auto x = fields.Number("top_p", 0, 1)) {
    // 0 means the likeliest alone, as with other servers.
    sampling.top_p = std::max(static_cast<float>(*x), 1e-6F);
  }
  if (const auto k = fields.Count("top_k", 0, size_t{1} << 31)) sampling.top_k = *k;
  if (const auto x = fields.Number("min_p", 0, 1)) sampling.min_p = static_cast<float>(*x);
  const JsonValue* seed = fields.Find("seed");
  if (seed != nullptr) {
    const auto number = fields.Number("seed", -9.3e18, 1.85e19);
    if (!seed->is_integer()) Refuse("seed", "an integer");
    sampling.seed = *number < 0 ? static_cast<uint64_t>(static_cast<int64_t>(*number))
                                : std::strtoull(seed->text.c_str(), nullptr, 10);
  } else {
    std::random_device device;
    sampling.seed = uint64_t{device()} << 32 | device();
  }
  return sampling;
}

void SetEffort(const std::string& level, const std::string& field, ChatRequest* request) {
  static const std::set<std::string> off = {"none", "minimal", "off", "disabled"};
  request->thinking = !off.contains(level);
  if (!request->thinking) {
    request->effort.clear();
  } else if (level == "low") {
    request->effort = "low";
  } else if (level == "medium" || level == "high") {
    request->effort = "high";
  } else if (level == "max" || level == "xhigh") {
    request->effort = "max";
  } else {
    Refuse(field, "none, minimal, low, medium, high, xhigh or max, found '" + level + "'");
  }
}

void CheckTools(const ChatRequest& chat) {
  std::set<std::string> names;
  if (chat.tools) CheckToolArray(*chat.tools, "tools", &names);
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const ChatMessage& message = chat.messages[i];
    const std::string path = "messages[" + std::to_string(i) + "]";
    if (message.tools) CheckToolArray(*message.tools, path + ".tools", &names);
    if (message.tools && !TextOf(message.content).empty()) {
      Refuse(path, "either tools or content, not both");
    }
    if (message.role == ChatRole::kTool && message.tool_call_id.empty()) {
      Refuse(path + ".tool_call_id", "the id of a call");
    }
  }
  if (chat.tool_choice == ToolChoice::kRequired && names.empty()) {
    Refuse("tools", "at least one, where tool_choice is required");
  }
}

void ReadFormat(const JsonValue& format, const std::string& path, ChatRequest* chat) {
  const JsonValue* type = format.FindSet("type");
  const std::string kind = type != nullptr && type->is_string() ? type->text : "";
  if (kind == "json_object") {
    chat->response_format = ResponseFormat::kJsonObject;
  } else if (kind == "json_schema") {
    const JsonValue* schema = format.FindSet("schema");
    if (schema == nullptr || !schema->is_object()) Refuse(path + ".schema", "an object");
    chat->response_format = ResponseFormat::kJsonSchema;
    chat->schema = *schema;
  } else if (kind != "text") {
    Refuse(path + ".type", "text, json_object or json_schema");
  }
}

void FinishChatRequest(const ChatRequest& chat, std::optional<size_t> max_tokens,
                       const ServedModel& model, ApiRequest* request) {
  if (!model.markup) {
    throw ApiError(400, "this model knows no chat format; use /v1/completions");
  }
  if (chat.messages.empty()) Refuse("messages", "at least one");
  CheckTools(chat);
  request->is_chat = true;
  request->thinking = AnswersInThought(*model.markup, chat);
  request->tools = chat.tools.has_value() || std::ranges::any_of(chat.messages, [](const auto& m) {
                     return m.tools.has_value();
                   });
  if (chat.tool_choice == ToolChoice::kNone) request->tools = false;
  request->notes = chat.notes;
  EncodedPrompt prompt;
  try {
    prompt = EncodeChat(*model.tokenizer, chat);
  } catch (const Error& error) {
    throw ApiError(400, error.what());
  }
  FinishRequest(std::move(prompt.ids), max_tokens, model, request);
  const bool has_tail =
      chat.tool_choice != ToolChoice::kAuto || chat.response_format != ResponseFormat::kText;
  if (chat.response_format != ResponseFormat::kText) {
    request->job.filter = std::make_shared<TokenFilter>(
        *model.tokenizer, *model.markup, request->thinking,
        chat.response_format == ResponseFormat::kJsonObject ? JsonGrammar::AnyObject()
                                                            : JsonGrammar::FromSchema(chat.schema));
  }
  if (has_tail) request->job.cut_at = prompt.history_length;
}

void FinishRequest(std::vector<TokenId> prompt, std::optional<size_t> max_tokens,
                   const ServedModel& model, ApiRequest* request) {
  if (prompt.empty()) Refuse("prompt", "at least one token");
  for (const TokenId id : prompt) {
    if (id >= model.tokenizer->vocab_size()) {
      Refuse("prompt", "ids below " + std::to_string(model.tokenizer->vocab_size()));
    }
  }
  if (prompt.size() >= model.context) {
    throw ApiError(400,
                   "This model's maximum context length is " + std::to_string(model.context) +
                       " tokens, but the prompt has " + std::to_string(prompt.size()) +
                       "; shorten it, or serve with a larger -c",
                   "context_length_exceeded");
  }
  const size_t room = model.context - prompt.size();
  request->job.max_tokens = std::min(max_tokens.value_or(room), room);
  request->job.prompt = std::move(prompt);
  request->job.stop_ids = model.stop_ids;
}

}  // namespace thimble::server
