#include "chat/chat_request.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace thimble {
namespace {

[[noreturn]] void Fail(const std::string& path, const std::string& message) {
  throw Error(ErrorCode::kUsage, path + ": " + message);
}

// The string `key` of `object`, empty where it is absent or null.
std::string ReadString(const JsonValue& object, const std::string& key, const std::string& path) {
  const JsonValue* value = object.FindSet(key);
  if (value == nullptr) return {};
  if (!value->is_string()) Fail(path + "." + key, "expected a string");
  return value->text;
}

ChatRole ReadRole(const JsonValue& message, const std::string& path) {
  const JsonValue* role = message.Find("role");
  if (role == nullptr || !role->is_string()) Fail(path + ".role", "expected a string");
  if (role->text == "system" || role->text == "developer") return ChatRole::kSystem;
  if (role->text == "user") return ChatRole::kUser;
  if (role->text == "assistant") return ChatRole::kAssistant;
  if (role->text == "tool") return ChatRole::kTool;
  Fail(path + ".role",
       "expected system, developer, user, assistant or tool, found '" + role->text + "'");
}

ContentPart ReadPart(const JsonValue& part, const std::string& path,
                     std::span<const ImageSize>* images) {
  if (!part.is_object()) Fail(path, "expected an object");
  const std::string type = ReadString(part, "type", path);
  if (type == "image" || type == "image_url") {
    if (images->empty()) {
      Fail(path, "images are not supported: vision is not built yet; send text only");
    }
    const ImageSize size = images->front();
    *images = images->subspan(1);
    return {{}, size};
  }
  const JsonValue* text = part.Find("text");
  if (text == nullptr || !text->is_string()) {
    Fail(path + ".text", "expected a string; parts of type '" + type + "' are not supported");
  }
  return {text->text, std::nullopt};
}

std::vector<ContentPart> ReadContent(const JsonValue& message, const std::string& path,
                                     std::span<const ImageSize>* images) {
  const JsonValue* content = message.FindSet("content");
  if (content == nullptr) return {};
  if (content->is_string()) return {{content->text, std::nullopt}};
  if (!content->is_array()) Fail(path, "expected a string or an array of parts");
  std::vector<ContentPart> parts;
  for (size_t i = 0; i < content->items.size(); ++i) {
    parts.push_back(ReadPart(content->items[i], path + "[" + std::to_string(i) + "]", images));
  }
  return parts;
}

ToolCall ReadToolCall(const JsonValue& value, const std::string& path) {
  if (!value.is_object()) Fail(path, "expected an object");
  const JsonValue* nested = value.FindSet("function");
  if (nested != nullptr && !nested->is_object()) Fail(path + ".function", "expected an object");
  const JsonValue& function = nested != nullptr ? *nested : value;
  ToolCall call;
  call.id = ReadString(value, "id", path);
  call.name = ReadString(function, "name", path);
  if (call.name.empty()) Fail(path + ".function.name", "expected the name of a function");
  const JsonValue* arguments = function.FindSet("arguments");
  if (arguments != nullptr) ReadToolArguments(*arguments, path + ".function.arguments", &call);
  return call;
}

ToolChoice ReadToolChoice(const JsonValue* choice) {
  if (choice == nullptr) return ToolChoice::kAuto;
  // A choice of one function is not enforced: the model knows no such instruction.
  if (choice->is_object() && choice->FindSet("function") != nullptr) return ToolChoice::kAuto;
  if (choice->is_string()) {
    if (choice->text == "auto") return ToolChoice::kAuto;
    if (choice->text == "none") return ToolChoice::kNone;
    if (choice->text == "required") return ToolChoice::kRequired;
  }
  Fail("tool_choice", "expected auto, none, required, or an object that names a function");
}

void ReadResponseFormat(const JsonValue& format, ChatRequest* request) {
  const std::string path = "response_format";
  if (!format.is_object()) Fail(path, "expected an object");
  const std::string type = ReadString(format, "type", path);
  if (type == "text") return;
  if (type == "json_object") {
    request->response_format = ResponseFormat::kJsonObject;
    return;
  }
  if (type != "json_schema") {
    Fail(path + ".type", "expected text, json_object or json_schema, found '" + type + "'");
  }
  const JsonValue* outer = format.FindSet("json_schema");
  if (outer == nullptr || !outer->is_object()) Fail(path + ".json_schema", "expected an object");
  const JsonValue* schema = outer->FindSet("schema");
  if (schema == nullptr) schema = outer->FindSet("json_schema");
  request->response_format = ResponseFormat::kJsonSchema;
  request->schema = schema != nullptr ? *schema : *outer;
}

const JsonValue* ReadToolArray(const JsonValue& object, const std::string& path) {
  const JsonValue* tools = object.FindSet("tools");
  if (tools != nullptr && !tools->is_array()) Fail(path, "expected an array");
  return tools == nullptr || tools->items.empty() ? nullptr : tools;
}

bool ReadBoolean(const JsonValue& body, const std::string& key, bool absent) {
  const JsonValue* value = body.FindSet(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) Fail(key, "expected true or false");
  return value->boolean;
}

}  // namespace

void ReadToolArguments(const JsonValue& arguments, const std::string& path, ToolCall* call) {
  if (arguments.is_object()) {
    call->arguments = arguments.members;
    return;
  }
  if (!arguments.is_string()) Fail(path, "expected a JSON object, or a string that holds one");
  if (arguments.text.find_first_not_of(" \t\r\n") == std::string::npos) return;
  JsonValue parsed;
  try {
    parsed = ParseJson(arguments.text);
  } catch (const Error&) {
    call->raw_arguments = arguments.text;
    return;
  }
  if (!parsed.is_object()) Fail(path, "expected a JSON object, found other JSON");
  call->arguments = std::move(parsed.members);
}

ChatMessage ReadChatMessage(const JsonValue& message, const std::string& path,
                            std::span<const ImageSize>* images) {
  if (!message.is_object()) Fail(path, "expected an object");
  ChatMessage read;
  read.role = ReadRole(message, path);
  read.name = ReadString(message, "name", path);
  read.content = ReadContent(message, path + ".content", images);
  if (read.role == ChatRole::kSystem) {
    if (const JsonValue* tools = ReadToolArray(message, path + ".tools")) read.tools = *tools;
  } else if (read.role == ChatRole::kTool) {
    read.tool = ReadString(message, "tool", path);
    read.tool_call_id = ReadString(message, "tool_call_id", path);
    if (read.tool_call_id.empty()) read.tool_call_id = ReadString(message, "id", path);
  } else if (read.role == ChatRole::kAssistant) {
    read.reasoning = ReadString(message, "reasoning_content", path);
    if (read.reasoning.empty()) read.reasoning = ReadString(message, "reasoning", path);
    const JsonValue* calls = message.FindSet("tool_calls");
    if (calls != nullptr && !calls->is_array()) Fail(path + ".tool_calls", "expected an array");
    for (size_t i = 0; calls != nullptr && i < calls->items.size(); ++i) {
      const std::string place = path + ".tool_calls[" + std::to_string(i) + "]";
      read.tool_calls.push_back(ReadToolCall(calls->items[i], place));
    }
  }
  return read;
}

ChatRequest ReadChatRequest(const JsonValue& body, std::span<const ImageSize> images) {
  if (!body.is_object()) Fail("request", "expected a JSON object");
  ChatRequest request;
  const JsonValue* messages = body.FindSet("messages");
  if (messages == nullptr || !messages->is_array()) Fail("messages", "expected an array");
  for (size_t i = 0; i < messages->items.size(); ++i) {
    const std::string path = "messages[" + std::to_string(i) + "]";
    request.messages.push_back(ReadChatMessage(messages->items[i], path, &images));
  }
  if (const JsonValue* tools = ReadToolArray(body, "tools")) request.tools = *tools;
  request.tool_choice = ReadToolChoice(body.FindSet("tool_choice"));
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
