#include <optional>

#include "server/api.h"
#include "server/request_fields.h"
#include "server/sse.h"

// Anthropic's /v1/messages.

namespace thimble::server {
namespace {

std::string TextField(const JsonValue& object, const std::string& key, const std::string& path) {
  const JsonValue* value = object.FindSet(key);
  if (value == nullptr || !value->is_string()) Refuse(path + "." + key, "a string");
  return value->text;
}

// A string, or blocks of text; other blocks are refused.
std::string TextBlocks(const JsonValue* content, const std::string& path) {
  if (content == nullptr) return {};
  if (content->is_string()) return content->text;
  if (!content->is_array()) Refuse(path, "a string or blocks");
  std::string text;
  for (size_t i = 0; i < content->items.size(); ++i) {
    const std::string place = path + "[" + std::to_string(i) + "]";
    const std::string type = TextField(content->items[i], "type", place);
    if (type == "image") Refuse(place, "text; images are not supported: vision is not built yet");
    if (type != "text") Refuse(place, "a block of text, found '" + type + "'");
    text += TextField(content->items[i], "text", place);
  }
  return text;
}

ChatMessage Message(ChatRole role) {
  ChatMessage message;
  message.role = role;
  return message;
}

// The blocks of one message. Results of tools become messages of their own, before its text.
class MessageReader {
 public:
  MessageReader(ChatRole role, std::vector<ChatMessage>* messages)
      : messages_(messages), message_(Message(role)) {}

  void ReadBlock(const JsonValue& block, const std::string& path) {
    const std::string type = TextField(block, "type", path);
    const bool is_assistant = message_.role == ChatRole::kAssistant;
    if (type == "text") {
      message_.content.push_back({TextField(block, "text", path), std::nullopt});
    } else if (type == "thinking" && is_assistant) {
      message_.reasoning += TextField(block, "thinking", path);
    } else if (type == "redacted_thinking" && is_assistant) {
      return;
    } else if (type == "tool_use" && is_assistant) {
      ToolCall call = {TextField(block, "id", path), TextField(block, "name", path), {}, {}};
      const JsonValue* input = block.FindSet("input");
      if (input != nullptr && !input->is_object()) Refuse(path + ".input", "an object");
      if (input != nullptr) call.arguments = input->members;
      message_.tool_calls.push_back(std::move(call));
    } else if (type == "tool_result" && !is_assistant) {
      ChatMessage result = Message(ChatRole::kTool);
      result.tool_call_id = TextField(block, "tool_use_id", path);
      result.content = {{TextBlocks(block.FindSet("content"), path + ".content"), std::nullopt}};
      messages_->push_back(std::move(result));
    } else if (type == "image" || type == "document") {
      Refuse(path, "text; images are not supported: vision is not built yet");
    } else {
      Refuse(path + ".type", "a block that fits the role, found '" + type + "'");
    }
  }

  void Finish() {
    const bool only_results = message_.role == ChatRole::kUser && message_.content.empty();
    if (!only_results) messages_->push_back(std::move(message_));
  }

 private:
  std::vector<ChatMessage>* messages_;
  ChatMessage message_;
};

void ReadMessage(const JsonValue& value, const std::string& path, ChatRequest* chat) {
  if (!value.is_object()) Refuse(path, "an object");
  const std::string role = TextField(value, "role", path);
  if (role != "user" && role != "assistant") Refuse(path + ".role", "user or assistant");
  MessageReader reader(role == "user" ? ChatRole::kUser : ChatRole::kAssistant, &chat->messages);
  const JsonValue* content = value.FindSet("content");
  if (content != nullptr && content->is_string()) {
    ChatMessage message = Message(role == "user" ? ChatRole::kUser : ChatRole::kAssistant);
    message.content = {{content->text, std::nullopt}};
    chat->messages.push_back(std::move(message));
    return;
  }
  if (content == nullptr || !content->is_array()) Refuse(path + ".content", "a string or blocks");
  for (size_t i = 0; i < content->items.size(); ++i) {
    reader.ReadBlock(content->items[i], path + ".content[" + std::to_string(i) + "]");
  }
  reader.Finish();
}

// Their form into OpenAI's, which is what the model was trained on.
JsonValue ConvertTools(const JsonValue& tools) {
  if (!tools.is_array()) Refuse("tools", "an array");
  JsonValue converted;
  converted.kind = JsonValue::Kind::kArray;
  for (size_t i = 0; i < tools.items.size(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    const JsonValue& tool = tools.items[i];
    std::vector<JsonMember> function = {{"name", JsonValue::String(TextField(tool, "name", path))}};
    if (const JsonValue* description = tool.FindSet("description")) {
      function.push_back({"description", *description});
    }
    if (const JsonValue* schema = tool.FindSet("input_schema")) {
      function.push_back({"parameters", *schema});
    }
    converted.items.push_back(FunctionTool(std::move(function)));
  }
  return converted;
}

void ReadToolChoice(const JsonValue& choice, ChatRequest* chat) {
  const std::string type = TextField(choice, "type", "tool_choice");
  if (type == "any") {
    chat->tool_choice = ToolChoice::kRequired;
  } else if (type == "none") {
    chat->tool_choice = ToolChoice::kNone;
  } else if (type != "auto" && type != "tool") {
    Refuse("tool_choice.type", "auto, any, tool or none");
  }
}

void ReadThinking(const RequestFields& fields, const ServedModel& model, ChatRequest* chat) {
  chat->thinking = !model.effort.empty();
  chat->effort = model.effort;
  const JsonValue* thinking = fields.Find("thinking");
  if (thinking != nullptr && TextField(*thinking, "type", "thinking") == "disabled") {
    SetEffort("off", "thinking", chat);
    return;
  }
  const JsonValue* output = fields.Find("output_config");
  const JsonValue* effort = output == nullptr ? nullptr : output->FindSet("effort");
  if (effort != nullptr && effort->is_string()) {
    SetEffort(effort->text, "output_config.effort", chat);
  } else if (thinking != nullptr && !chat->thinking) {
    SetEffort("low", "thinking", chat);
  }
}

}  // namespace

ApiRequest ReadMessagesApi(const JsonValue& body, const ServedModel& model, bool count_only) {
  const RequestFields fields(body);
  ChatRequest chat;
  const std::string system = TextBlocks(fields.Find("system"), "system");
  if (!system.empty()) {
    chat.messages.push_back(Message(ChatRole::kSystem));
    chat.messages.back().content = {{system, std::nullopt}};
  }
  const JsonValue* messages = fields.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->items.empty()) {
    Refuse("messages", "an array of at least one");
  }
  for (size_t i = 0; i < messages->items.size(); ++i) {
    ReadMessage(messages->items[i], "messages[" + std::to_string(i) + "]", &chat);
  }
  if (const JsonValue* tools = fields.Find("tools")) {
    JsonValue converted = ConvertTools(*tools);
    if (!converted.items.empty()) chat.tools = std::move(converted);
  }
  if (const JsonValue* choice = fields.Find("tool_choice")) ReadToolChoice(*choice, &chat);
  ReadThinking(fields, model, &chat);
  if (const JsonValue* output = fields.Find("output_config")) {
    if (const JsonValue* format = output->FindSet("format")) {
      ReadFormat(*format, "output_config.format", &chat);
    }
  }

  ApiRequest request;
  request.stream = fields.Boolean("stream", false);
  request.stops = fields.Stops("stop_sequences");
  request.job.sampling = ReadSampling(fields, model);
  const auto most = fields.Count("max_tokens", 1, kMaxAnswer);
  if (!most && !count_only) Refuse("max_tokens", "a number of tokens");
  try {
    FinishChatRequest(chat, most, model, &request);
  } catch (const ApiError& error) {
    if (error.code() != "context_length_exceeded") throw;
    // What the clients of this API look for.
    throw ApiError(400, std::string("prompt is too long: ") + error.what(), error.code());
  }
  return request;
}

}  // namespace thimble::server
