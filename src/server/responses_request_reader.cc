#include <algorithm>
#include <optional>
#include <string_view>

#include "server/api.h"
#include "server/request_fields.h"
#include "server/sse.h"

// OpenAI's /v1/responses, without a store: each request brings its whole conversation. Clients send
// a thought back as the encrypted_content that they had asked for, where there is one, and drop its
// text.

namespace thimble::server {
namespace {

constexpr const char* kEncrypted = "reasoning.encrypted_content";

std::string OptionalText(const JsonValue& object, const std::string& key) {
  const JsonValue* value = object.FindSet(key);
  return value != nullptr && value->is_string() ? value->text : std::string();
}

std::string PartsText(const JsonValue* content, const std::string& path) {
  if (content == nullptr) return {};
  if (content->is_string()) return content->text;
  if (!content->is_array()) Refuse(path, "a string or parts");
  std::string text;
  for (const JsonValue& part : content->items) {
    const std::string type = OptionalText(part, "type");
    if (type == "input_image" || type == "input_file") {
      Refuse(path, "text; images are not supported: vision is not built yet");
    }
    text += OptionalText(part, "text");
  }
  return text;
}

ChatMessage TextMessage(ChatRole role, std::string text) {
  ChatMessage message;
  message.role = role;
  message.content = {{std::move(text), std::nullopt}};
  return message;
}

std::string ThoughtText(const JsonValue& item, const std::string& path) {
  std::string text = PartsText(item.FindSet("content"), path + ".content");
  const std::string encrypted = OptionalText(item, "encrypted_content");
  if (!text.empty() || !encrypted.starts_with(kThoughtMark)) return text;
  return encrypted.substr(kThoughtMark.size());
}

// Items become messages; a thought, an answer and its calls in a row are one message.
class InputReader {
 public:
  explicit InputReader(ChatRequest* chat) : chat_(chat) {}

  void Read(const JsonValue& item, const std::string& path) {
    if (!item.is_object()) Refuse(path, "an object");
    const std::string type = OptionalText(item, "type");
    if (type == "reasoning") {
      Answer().reasoning += ThoughtText(item, path);
    } else if (type == "function_call") {
      ReadCall(item, path);
    } else if (type == "function_call_output") {
      ChatMessage result =
          TextMessage(ChatRole::kTool, PartsText(item.FindSet("output"), path + ".output"));
      result.tool_call_id = OptionalText(item, "call_id");
      Add(std::move(result));
    } else if (type.empty() || type == "message") {
      ReadMessage(item, path);
    } else {
      Refuse(path + ".type", "message, reasoning, function_call or function_call_output");
    }
  }

 private:
  void Add(ChatMessage message) {
    chat_->messages.push_back(std::move(message));
    answering_ = false;
  }
  ChatMessage& Answer() {
    if (!answering_) Add(TextMessage(ChatRole::kAssistant, ""));
    answering_ = true;
    return chat_->messages.back();
  }
  void ReadMessage(const JsonValue& item, const std::string& path) {
    const std::string role = OptionalText(item, "role");
    const std::string text = PartsText(item.FindSet("content"), path + ".content");
    if (role == "assistant") {
      Answer().content.push_back({text, std::nullopt});
    } else if (role == "user") {
      Add(TextMessage(ChatRole::kUser, text));
    } else if (role == "system" || role == "developer") {
      Add(TextMessage(ChatRole::kSystem, text));
    } else {
      Refuse(path + ".role", "user, assistant, system or developer");
    }
  }
  void ReadCall(const JsonValue& item, const std::string& path) {
    ToolCall call = {OptionalText(item, "call_id"), OptionalText(item, "name"), {}, {}};
    if (call.name.empty()) Refuse(path + ".name", "the name of a function");
    if (const JsonValue* arguments = item.FindSet("arguments")) {
      ReadToolArguments(*arguments, path + ".arguments", &call);
    }
    Answer().tool_calls.push_back(std::move(call));
  }

  ChatRequest* chat_;
  bool answering_ = false;  // the last message is an answer that may go on
};

// Tools of other kinds (a client's web search, say) are left out: the model cannot use them.
JsonValue ConvertTools(const JsonValue& tools) {
  if (!tools.is_array()) Refuse("tools", "an array");
  JsonValue converted;
  converted.kind = JsonValue::Kind::kArray;
  for (const JsonValue& tool : tools.items) {
    if (OptionalText(tool, "type") != "function") continue;
    std::vector<JsonMember> function;
    for (const char* key : {"name", "description", "parameters"}) {
      if (const JsonValue* value = tool.FindSet(key)) function.push_back({key, *value});
    }
    converted.items.push_back(FunctionTool(std::move(function)));
  }
  return converted;
}

bool WantsEncrypted(const RequestFields& fields) {
  const JsonValue* include = fields.Find("include");
  if (include == nullptr) return false;
  if (!include->is_array()) Refuse("include", "an array");
  return std::ranges::any_of(include->items,
                             [](const JsonValue& item) { return item.text == kEncrypted; });
}

void ReadInput(const JsonValue* input, ChatRequest* chat) {
  if (input != nullptr && input->is_string()) {
    chat->messages.push_back(TextMessage(ChatRole::kUser, input->text));
  } else if (input != nullptr && input->is_array()) {
    InputReader reader(chat);
    for (size_t i = 0; i < input->items.size(); ++i) {
      reader.Read(input->items[i], "input[" + std::to_string(i) + "]");
    }
  } else {
    Refuse("input", "a string or items");
  }
}

}  // namespace

ApiRequest ReadResponsesApi(const JsonValue& body, const ServedModel& model) {
  const RequestFields fields(body);
  if (!fields.String("previous_response_id").empty()) {
    throw ApiError(400, "previous_response_id: responses are not stored; send the conversation");
  }
  ChatRequest chat;
  const std::string instructions = fields.String("instructions");
  if (!instructions.empty()) {
    chat.messages.push_back(TextMessage(ChatRole::kSystem, instructions));
  }
  ReadInput(fields.Find("input"), &chat);
  if (const JsonValue* tools = fields.Find("tools")) {
    JsonValue converted = ConvertTools(*tools);
    if (!converted.items.empty()) chat.tools = std::move(converted);
  }
  if (const JsonValue* choice = fields.Find("tool_choice"); choice != nullptr) {
    if (choice->text == "none") chat.tool_choice = ToolChoice::kNone;
    if (choice->text == "required") chat.tool_choice = ToolChoice::kRequired;
  }
  chat.thinking = !model.effort.empty();
  chat.effort = model.effort;
  if (const JsonValue* reasoning = fields.Find("reasoning")) {
    const std::string effort = OptionalText(*reasoning, "effort");
    if (!effort.empty()) SetEffort(effort, "reasoning.effort", &chat);
  }
  if (const JsonValue* text = fields.Find("text")) {
    if (const JsonValue* format = text->FindSet("format")) {
      ReadFormat(*format, "text.format", &chat);
    }
  }
  ApiRequest request;
  request.encrypted_reasoning = WantsEncrypted(fields);
  request.stream = fields.Boolean("stream", false);
  request.job.sampling = ReadSampling(fields, model);
  FinishChatRequest(chat, fields.Count("max_output_tokens", 1, kMaxAnswer), model, &request);
  return request;
}

}  // namespace thimble::server
