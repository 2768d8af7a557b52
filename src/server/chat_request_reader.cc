#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "chat/content_reader.h"
#include "server/api.h"
#include "server/field_policy.h"
#include "server/request_fields.h"
#include "server/thinking_fields.h"
#include "server/tool_reader.h"

// Requests of OpenAI's /v1/chat/completions, and what other servers have added to them.

namespace thimble::server {
namespace {

constexpr size_t kMaxTopLogprobs = 20;

// The fields of the body that ReadChatRequest reads as they are.
JsonValue ChatFields(const JsonValue& body) {
  JsonValue fields;
  fields.kind = JsonValue::Kind::kObject;
  for (const char* key : {"messages", "tool_choice", "response_format"}) {
    if (const JsonValue* value = body.FindSet(key)) fields.members.push_back({key, *value});
  }
  return fields;
}

void CheckFormat(const RequestFields& fields) {
  const JsonValue* format = fields.Find("response_format");
  const JsonValue* schema = format == nullptr ? nullptr : format->FindSet("json_schema");
  if (schema == nullptr) return;
  const JsonValue* inner = schema->FindSet("schema");
  if (FindText(*schema, "name").empty()) Refuse("response_format.json_schema.name", "a name");
  if (inner == nullptr || !inner->is_object()) {
    Refuse("response_format.json_schema.schema", "an object");
  }
}

// A schema, or a string that holds one.
void SetSchema(const JsonValue& schema, const std::string& path, ChatRequest* chat) {
  chat->response_format = ResponseFormat::kJsonSchema;
  const bool is_text = schema.is_string() && IsJson(schema.text);
  chat->schema = is_text ? ParseJson(schema.text) : schema;
  if (!chat->schema.is_object()) Refuse(path, "a JSON schema");
}

// Schemas where other servers than OpenAI's take them.
void ReadGuidance(const RequestFields& fields, ChatRequest* chat) {
  for (const char* key : {"guided_json", "json_schema"}) {
    if (const JsonValue* schema = fields.Find(key)) SetSchema(*schema, key, chat);
  }
  const JsonValue* outputs = fields.Object("structured_outputs");
  if (outputs == nullptr) return;
  for (const JsonMember& member : outputs->members) {
    const std::string path = "structured_outputs." + member.key;
    if (member.value.is_null()) continue;
    if (member.key == "json") {
      SetSchema(member.value, path, chat);
    } else if (member.key == "json_object") {
      if (member.value.boolean) chat->response_format = ResponseFormat::kJsonObject;
    } else {
      throw ApiError(400, path + ": not supported; use response_format with a JSON schema");
    }
  }
}

// OpenAI's older fields, functions and function_call.
void ReadFunctions(const RequestFields& fields, ChatRequest* chat, ApiRequest* request) {
  const JsonValue* functions = fields.Find("functions");
  if (functions == nullptr) return;
  if (fields.Find("tools") != nullptr) Refuse("functions", "either functions or tools");
  ReadTools(*functions, "functions", chat);
  request->legacy_functions = true;
  chat->parallel_tool_calls = false;  // such an answer has room for one call
  if (const JsonValue* choice = fields.Find("function_call")) ReadToolChoice(*choice, chat);
}

// Whether the last message says that it is to be continued, as with DeepSeek, Mistral and Moonshot.
bool IsMarkedPrefix(const JsonValue& body) {
  const JsonValue& last = body.FindSet("messages")->items.back();
  return std::ranges::any_of(std::initializer_list<const char*>{"prefix", "partial"},
                             [&](const char* key) {
                               const JsonValue* mark = last.FindSet(key);
                               return mark != nullptr && mark->boolean;
                             });
}

void ReadContinuation(const RequestFields& fields, const JsonValue& body, ChatRequest* chat) {
  if (chat->messages.empty()) return;
  const bool wanted = fields.Boolean("continue_final_message", IsMarkedPrefix(body));
  const bool answers_anew = fields.Find("continue_final_message") != nullptr ||
                            fields.Boolean("add_generation_prompt", false);
  const bool is_answer = chat->messages.back().role == ChatRole::kAssistant;
  if (wanted && (!is_answer || !chat->messages.back().tool_calls.empty())) {
    throw ApiError(400,
                   "continue_final_message: the last message must be of the assistant, without "
                   "tool calls");
  }
  if (!wanted && !fields.Boolean("add_generation_prompt", true)) {
    throw ApiError(400,
                   "add_generation_prompt: without it nothing can be answered, unless "
                   "continue_final_message is set");
  }
  if (wanted || !answers_anew) ContinueLastAnswer(chat);
}

std::optional<size_t> ReadMaxTokens(const RequestFields& fields) {
  std::optional<size_t> most;
  // Of several the latest counts.
  for (const char* key : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    if (fields.Find(key) != nullptr) most = fields.Limit(key, 1);
  }
  return most;
}

}  // namespace

ApiRequest ReadChatApi(const JsonValue& body, const ServedModel& model) {
  const RequestFields fields(body);
  ApiRequest request;
  CheckFormat(fields);
  ChatRequest chat = ReadChatRequest(ChatFields(body));
  CheckFields(Api::kChat, body, &chat);
  if (const JsonValue* tools = fields.Find("tools")) ReadTools(*tools, "tools", &chat);
  ReadFunctions(fields, &chat, &request);
  ReadGuidance(fields, &chat);
  ReadThinking(fields, model, &chat);
  NoteIneffective(fields, &chat);
  ReadContinuation(fields, body, &chat);

  ReadGeneration(fields, model, &request);
  if (const JsonValue* options = fields.Object("stream_options")) {
    request.include_usage = RequestFields(*options).Boolean("include_usage", false);
  }
  request.num_choices = fields.Count("n", 1, kMaxChoices).value_or(1);
  request.logprobs = fields.Boolean("logprobs", false);
  const auto top = fields.Count("top_logprobs", 0, kMaxTopLogprobs);
  if (request.logprobs) request.job.top_logprobs = top.value_or(0);
  FinishChatRequest(std::move(chat), ReadMaxTokens(fields), model, &request);
  return request;
}

}  // namespace thimble::server
