#include "chat/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "chat/content_reader.h"
#include "json/json_fields.h"

namespace thimble {
namespace {

[[noreturn]] void Fail(const std::string& path, const std::string& message) {
  throw Error(ErrorCode::kUsage, path + ": " + message);
}

// The string `key` of `object`, empty where it is absent or null.
std::string ReadString(const JsonValue& object, const std::string& key, const std::string& path) {
  return JsonFields(object, RequestOrigin(), path + ".").MaybeText(key).value_or("");
}

ChatRole ReadRole(const JsonValue& message, const std::string& path) {
  const JsonValue* role = message.Find("role");
  if (role == nullptr || !role->is_string()) Fail(path + ".role", "expected a string");
  if (role->text == "system" || role->text == "developer") return ChatRole::kSystem;
  if (role->text == "user") return ChatRole::kUser;
  if (role->text == "assistant") return ChatRole::kAssistant;
  if (role->text == "tool" || role->text == "function") return ChatRole::kTool;
  Fail(path + ".role",
       "expected system, developer, user, assistant or tool, found '" + role->text + "'");
}

// OpenAI's custom tools take a text, which the model knows as one argument.
ToolCall ReadCustomCall(const std::string& id, const JsonValue& custom, const std::string& path) {
  ToolCall call;
  call.id = id;
  call.name = ReadString(custom, "name", path);
  if (call.name.empty()) Fail(path + ".name", "expected the name of a tool");
  call.arguments = {{"input", JsonValue::String(FindText(custom, "input"))}};
  return call;
}

ToolCall ReadToolCall(const JsonValue& value, const std::string& path) {
  if (!value.is_object()) Fail(path, "expected an object");
  const JsonValue* custom = value.FindSet("custom");
  if (custom != nullptr && custom->is_object()) {
    return ReadCustomCall(ReadString(value, "id", path), *custom, path + ".custom");
  }
  const JsonValue* nested = value.FindSet("function");
  if (nested != nullptr && !nested->is_object()) Fail(path + ".function", "expected an object");
  const JsonValue& function = nested != nullptr ? *nested : value;
  ToolCall call;
  call.id = ReadString(value, "id", path);
  call.name = ReadString(function, "name", path);
  if (call.name.empty()) Fail(path + ".function.name", "expected the name of a function");
  const JsonValue* arguments = function.FindSet("arguments");
  if (arguments != nullptr) ReadToolArguments(*arguments, &call);
  return call;
}

// Of OpenAI's older API: one call without an id, for which its name stands.
ToolCall ReadFunctionCall(const JsonValue& value, const std::string& path) {
  if (!value.is_object()) Fail(path, "expected an object");
  ToolCall call = ReadToolCall(value, path);
  call.id = call.name;
  return call;
}

bool IsThought(const JsonValue& part) {
  const std::string type = FindText(part, "type");
  return type == "thinking" || type == "reasoning";
}

// The thought of an answer: a string, or, of gateways, parts.
std::string ReadReasoning(const JsonValue& message, const std::string& path) {
  for (const char* key : {"reasoning_content", "reasoning"}) {
    std::string text = ReadString(message, key, path);
    if (!text.empty()) return text;
  }
  for (const char* key : {"reasoning_details", "thinking_blocks"}) {
    const JsonValue* parts = message.FindSet(key);
    if (parts == nullptr) continue;
    std::string text;
    for (const JsonValue& part : parts->items) {
      text += FindText(part, "text") + FindText(part, "thinking");
    }
    if (!text.empty()) return text;
  }
  return {};
}

const JsonValue* ReadToolArray(const JsonValue& object, const std::string& path) {
  const JsonValue* tools = object.FindSet("tools");
  if (tools != nullptr && !tools->is_array()) Fail(path, "expected an array");
  return tools == nullptr || tools->items.empty() ? nullptr : tools;
}

class MessageReader {
 public:
  MessageReader(ChatRequest* request, std::span<const ImageSize> images)
      : content_(request, images) {}

  ChatMessage Read(const JsonValue& message, const std::string& path) {
    if (!message.is_object()) Fail(path, "expected an object");
    ChatMessage read;
    read.role = ReadRole(message, path);
    read.name = ReadString(message, "name", path);
    if (read.role == ChatRole::kAssistant) {
      ReadAnswer(message, path, &read);
      return read;
    }
    read.content = content_.Read(message.FindSet("content"), path + ".content");
    if (read.role == ChatRole::kTool) ReadResult(message, path, &read);
    if (read.role == ChatRole::kSystem) {
      if (const JsonValue* tools = ReadToolArray(message, path + ".tools")) read.tools = *tools;
    }
    return read;
  }

 private:
  static void ReadResult(const JsonValue& message, const std::string& path, ChatMessage* read) {
    read->tool = ReadString(message, "tool", path);
    read->tool_call_id = ReadString(message, "tool_call_id", path);
    if (read->tool_call_id.empty()) read->tool_call_id = ReadString(message, "id", path);
    if (FindText(message, "role") == "function") {
      read->tool = std::exchange(read->name, {});
      read->tool_call_id = read->tool;
    }
  }

  void ReadAnswer(const JsonValue& message, const std::string& path, ChatMessage* read) {
    read->reasoning = ReadReasoning(message, path);
    ReadAnswerContent(message.FindSet("content"), path + ".content", read);
    const std::string refusal = FindText(message, "refusal");
    if (!refusal.empty()) read->content.push_back({refusal, std::nullopt});
    const JsonValue* calls = message.FindSet("tool_calls");
    if (calls != nullptr && !calls->is_array()) Fail(path + ".tool_calls", "expected an array");
    for (size_t i = 0; calls != nullptr && i < calls->items.size(); ++i) {
      const std::string place = fmt::format("{}.tool_calls[{}]", path, i);
      read->tool_calls.push_back(ReadToolCall(calls->items[i], place));
    }
    if (const JsonValue* call = message.FindSet("function_call")) {
      read->tool_calls.push_back(ReadFunctionCall(*call, path + ".function_call"));
    }
  }

  void ReadAnswerContent(const JsonValue* content, const std::string& path, ChatMessage* read) {
    if (content == nullptr || !content->is_array()) {
      read->content = content_.Read(content, path);
      return;
    }
    for (size_t i = 0; i < content->items.size(); ++i) {
      const JsonValue& part = content->items[i];
      const std::string place = fmt::format("{}[{}]", path, i);
      if (!IsThought(part)) {
        read->content.push_back(content_.ReadPart(part, place));
        continue;
      }
      const JsonValue* thought = part.FindSet("thinking");
      read->reasoning +=
          content_.ReadText(thought != nullptr ? thought : part.FindSet("text"), place);
    }
  }

  ContentReader content_;
};

void ReadResponseFormat(const JsonValue& format, ChatRequest* request) {
  const std::string path = "response_format";
  if (!format.is_object()) Fail(path, "expected an object");
  const std::string type = ReadString(format, "type", path);
  if (type == "text") return;
  const JsonValue* plain = format.FindSet("schema");
  if (type == "json_object" && plain == nullptr) {
    request->response_format = ResponseFormat::kJsonObject;
    return;
  }
  if (type != "json_schema" && type != "json_object") {
    Fail(path + ".type", "expected text, json_object or json_schema, found '" + type + "'");
  }
  request->response_format = ResponseFormat::kJsonSchema;
  const JsonValue* outer = format.FindSet("json_schema");
  if (outer == nullptr && plain != nullptr) {
    if (!plain->is_object()) Fail(path + ".schema", "expected an object");
    request->schema = *plain;
    return;
  }
  if (outer == nullptr || !outer->is_object()) Fail(path + ".json_schema", "expected an object");
  const JsonValue* schema = outer->FindSet("schema");
  if (schema == nullptr) schema = outer->FindSet("json_schema");
  request->schema = schema != nullptr ? *schema : *outer;
}

bool ReadBoolean(const JsonValue& body, const std::string& key, bool absent) {
  return JsonFields(body, RequestOrigin()).MaybeBool(key).value_or(absent);
}

}  // namespace

ChatRequest ReadChatRequest(const JsonValue& body, std::span<const ImageSize> images) {
  if (!body.is_object()) Fail("request", "expected a JSON object");
  ChatRequest request;
  const JsonValue* messages = body.FindSet("messages");
  if (messages == nullptr || !messages->is_array()) Fail("messages", "expected an array");
  MessageReader reader(&request, images);
  for (size_t i = 0; i < messages->items.size(); ++i) {
    request.messages.push_back(reader.Read(messages->items[i], fmt::format("messages[{}]", i)));
  }
  if (const JsonValue* tools = ReadToolArray(body, "tools")) request.tools = *tools;
  if (const JsonValue* choice = body.FindSet("tool_choice")) ReadToolChoice(*choice, &request);
  if (const JsonValue* format = body.FindSet("response_format")) {
    ReadResponseFormat(*format, &request);
  }
  request.thinking = ReadBoolean(body, "thinking", true);
  request.effort = ReadString(body, "thinking_effort", "request");
  request.add_generation_prompt = ReadBoolean(body, "add_generation_prompt", true);
  if (!request.effort.empty()) CheckEffort(request.effort);
  return request;
}

void ChatRequest::AddNote(const std::string& note) {
  if (std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
}

bool EndsWithAnswer(const ChatRequest& request) {
  if (request.messages.empty()) return false;
  const ChatMessage& last = request.messages.back();
  const bool has_text = !TextOf(last.content).empty() || !last.reasoning.empty();
  return last.role == ChatRole::kAssistant && has_text && last.tool_calls.empty();
}

void CheckEffort(const std::string& effort) {
  if (effort == "low" || effort == "high" || effort == "max") return;
  Fail("thinking_effort", "expected low, high or max, found '" + effort + "'");
}

std::string TextOf(const std::vector<ContentPart>& content) {
  std::string text;
  for (const ContentPart& part : content) text += part.text;
  return text;
}

}  // namespace thimble
