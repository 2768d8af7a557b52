#include <algorithm>
#include <map>

#include "server/api.h"
#include "server/request_fields.h"
#include "server/sse.h"

// OpenAI's /v1/chat/completions.

namespace thimble::server {
namespace {

constexpr size_t kMaxTopLogprobs = 20;

// The level that a request asks for by any of the ways clients have; empty: none.
std::string FindEffort(const RequestFields& fields, std::string* field) {
  const auto text = [](const JsonValue* value) {
    return value != nullptr && value->is_string() ? value->text : std::string();
  };
  std::string level;
  if (const JsonValue* arguments = fields.Find("chat_template_kwargs")) {
    for (const char* key : {"thinking", "enable_thinking"}) {
      const JsonValue* value = arguments->FindSet(key);
      if (value != nullptr && value->is_boolean() && !value->boolean) return "off";
    }
    *field = "chat_template_kwargs.thinking_effort";
    level = text(arguments->FindSet("thinking_effort"));
  }
  if (fields.Find("reasoning_effort") != nullptr) {
    *field = "reasoning_effort";
    level = fields.String("reasoning_effort");
  }
  if (const JsonValue* thinking = fields.Find("thinking")) {
    if (thinking->is_boolean()) return thinking->boolean ? level : "off";
    if (text(thinking->FindSet("type")) == "disabled") return "off";
    const std::string effort = text(thinking->FindSet("effort"));
    if (!effort.empty()) {
      *field = "thinking.effort";
      level = effort;
    }
  }
  return level;
}

// The fields of the body that ReadChatRequest reads as they are.
JsonValue ChatFields(const JsonValue& body) {
  JsonValue fields;
  fields.kind = JsonValue::Kind::kObject;
  for (const char* key : {"messages", "tools", "tool_choice", "response_format"}) {
    if (const JsonValue* value = body.FindSet(key)) fields.members.push_back({key, *value});
  }
  return fields;
}

void CheckFormat(const RequestFields& fields) {
  const JsonValue* format = fields.Find("response_format");
  const JsonValue* schema = format == nullptr ? nullptr : format->FindSet("json_schema");
  if (schema == nullptr) return;
  const JsonValue* name = schema->FindSet("name");
  const JsonValue* inner = schema->FindSet("schema");
  if (name == nullptr || !name->is_string() || name->text.empty()) {
    Refuse("response_format.json_schema.name", "a name");
  }
  if (inner == nullptr || !inner->is_object()) {
    Refuse("response_format.json_schema.schema", "an object");
  }
}

}  // namespace

ApiRequest ReadChatApi(const JsonValue& body, const ServedModel& model) {
  const RequestFields fields(body);
  fields.Count("n", 1, 1);
  CheckFormat(fields);
  ChatRequest chat = ReadChatRequest(ChatFields(body));
  chat.thinking = !model.effort.empty();
  chat.effort = model.effort;
  std::string field;
  const std::string level = FindEffort(fields, &field);
  if (!level.empty()) SetEffort(level, field, &chat);

  ApiRequest request;
  request.stream = fields.Boolean("stream", false);
  if (const JsonValue* options = fields.Find("stream_options")) {
    request.include_usage = RequestFields(*options).Boolean("include_usage", false);
  }
  request.stops = fields.Stops("stop");
  request.logprobs = fields.Boolean("logprobs", false);
  const auto top = fields.Count("top_logprobs", 0, kMaxTopLogprobs);
  if (request.logprobs) request.job.top_logprobs = top.value_or(0);
  request.job.sampling = ReadSampling(fields, model);
  auto most = fields.Count("max_tokens", 1, kMaxAnswer);
  if (const auto newer = fields.Count("max_completion_tokens", 1, kMaxAnswer)) most = newer;
  FinishChatRequest(chat, most, model, &request);
  return request;
}

}  // namespace thimble::server
