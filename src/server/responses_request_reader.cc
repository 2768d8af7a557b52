#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "chat/content_reader.h"
#include "server/api.h"
#include "server/field_policy.h"
#include "server/request_fields.h"
#include "server/thinking_fields.h"
#include "server/tool_reader.h"

// Requests of OpenAI's /v1/responses, without a store: each brings its whole conversation. Clients
// send a thought back as the encrypted_content that they had asked for, where there is one, and
// drop its text.

namespace thimble::server {
namespace {

constexpr const char* kEncrypted = "reasoning.encrypted_content";
constexpr std::string_view kCall = "_call";
constexpr std::string_view kOutput = "_call_output";

ChatMessage NewMessage(ChatRole role, std::vector<ContentPart> content) {
  ChatMessage message;
  message.role = role;
  message.content = std::move(content);
  return message;
}

// Items become messages; a thought, an answer and its calls in a row are one message.
class InputReader {
 public:
  explicit InputReader(ChatRequest* chat) : chat_(chat), content_(chat) {}

  void Read(const JsonValue& item, const std::string& path) {
    if (!item.is_object()) Refuse(path, "an object");
    const std::string type = FindText(item, "type");
    ended_ = FindText(item, "status") == "completed";
    if (type == "reasoning") {
      Answer().reasoning += ThoughtText(item, path);
    } else if (type.empty() || type == "message") {
      ReadMessage(item, path);
    } else if (type.ends_with(kOutput)) {
      ReadOutput(item, path);
    } else if (type.ends_with(kCall)) {
      ReadCall(item, type, path);
    } else if (type == "item_reference") {
      throw ApiError(400, path + ": items are not stored; send the item itself");
    } else {
      chat_->AddNote(fmt::format("an item of type {} was left out", type));
    }
  }

  /// Whether the latest item said that it was whole.
  bool ended() const { return ended_; }

 private:
  void Add(ChatMessage message) {
    chat_->messages.push_back(std::move(message));
    answering_ = false;
  }
  ChatMessage& Answer() {
    if (!answering_) Add(NewMessage(ChatRole::kAssistant, {}));
    answering_ = true;
    return chat_->messages.back();
  }

  std::string ThoughtText(const JsonValue& item, const std::string& path) {
    std::string text = content_.ReadText(item.FindSet("content"), path + ".content");
    const std::string encrypted = FindText(item, "encrypted_content");
    if (!text.empty()) return text;
    if (encrypted.starts_with(kThoughtMark)) return encrypted.substr(kThoughtMark.size());
    if (!encrypted.empty()) chat_->AddNote("a thought that another server encrypted was left out");
    return content_.ReadText(item.FindSet("summary"), path + ".summary");
  }

  void ReadMessage(const JsonValue& item, const std::string& path) {
    const std::string role = FindText(item, "role");
    std::vector<ContentPart> content = content_.Read(item.FindSet("content"), path + ".content");
    if (role == "assistant") {
      for (ContentPart& part : content) Answer().content.push_back(std::move(part));
    } else if (role == "user") {
      Add(NewMessage(ChatRole::kUser, std::move(content)));
    } else if (role == "system" || role == "developer") {
      Add(NewMessage(ChatRole::kSystem, std::move(content)));
    } else {
      Refuse(path + ".role", "user, assistant, system or developer");
    }
  }

  // function_call and custom_tool_call have names; others, such as local_shell_call and
  // web_search_call, are called by their type. Of some the item holds the result, too.
  void ReadCall(const JsonValue& item, const std::string& type, const std::string& path) {
    ToolCall call;
    call.id = CallId(item);
    call.name = FindText(item, "name");
    if (call.name.empty() && type == "function_call") Refuse(path + ".name", "a function's name");
    if (call.name.empty()) call.name = type.substr(0, type.size() - kCall.size());
    if (const JsonValue* arguments = item.FindSet("arguments")) {
      ReadToolArguments(*arguments, &call);
    } else if (const JsonValue* input = item.FindSet("input")) {
      call.arguments = {{"input", *input}};
    } else if (const JsonValue* action = item.FindSet("action")) {
      ReadToolArguments(*action, &call);
    }
    ChatMessage result;
    const JsonValue* output = item.FindSet("output");
    if (output != nullptr) result = ResultOf(call.id, *output, path + ".output");
    Answer().tool_calls.push_back(std::move(call));
    if (output != nullptr) Add(std::move(result));
  }

  void ReadOutput(const JsonValue& item, const std::string& path) {
    const std::string id = FindText(item, "call_id");
    if (id.empty()) Refuse(path + ".call_id", "the id of a call");
    const JsonValue* output = item.FindSet("output");
    Add(ResultOf(id, output == nullptr ? JsonValue() : *output, path + ".output"));
  }

  ChatMessage ResultOf(const std::string& id, const JsonValue& output, const std::string& path) {
    ChatMessage result = NewMessage(ChatRole::kTool, content_.Read(&output, path));
    result.tool_call_id = id;
    return result;
  }

  static std::string CallId(const JsonValue& item) {
    const std::string id = FindText(item, "call_id");
    return id.empty() ? FindText(item, "id") : id;
  }

  ChatRequest* chat_;
  ContentReader content_;
  bool answering_ = false;  // the last message is an answer that may go on
  bool ended_ = false;
};

bool WantsEncrypted(const RequestFields& fields, ChatRequest* chat) {
  const JsonValue* include = fields.Find("include");
  if (include == nullptr) return false;
  if (!include->is_array()) Refuse("include", "an array");
  bool wanted = false;
  for (const JsonValue& item : include->items) {
    if (item.text == kEncrypted) {
      wanted = true;
    } else {
      chat->AddNote(fmt::format("include: only {} has an effect", kEncrypted));
    }
  }
  return wanted;
}

void ReadInstructions(const RequestFields& fields, ChatRequest* chat) {
  ContentReader content(chat);
  const JsonValue* instructions = fields.Find("instructions");
  if (instructions == nullptr) return;
  if (instructions->is_array()) {
    InputReader reader(chat);
    for (size_t i = 0; i < instructions->items.size(); ++i) {
      reader.Read(instructions->items[i], fmt::format("instructions[{}]", i));
    }
    return;
  }
  const std::string text = fields.String("instructions");
  if (!text.empty())
    chat->messages.push_back(NewMessage(ChatRole::kSystem, {{text, std::nullopt}}));
}

void ReadInput(const JsonValue* input, ChatRequest* chat) {
  if (input != nullptr && input->is_string()) {
    chat->messages.push_back(NewMessage(ChatRole::kUser, {{input->text, std::nullopt}}));
    return;
  }
  InputReader reader(chat);
  if (input != nullptr && input->is_object()) return reader.Read(*input, "input");
  if (input == nullptr || !input->is_array()) Refuse("input", "a string or items");
  for (size_t i = 0; i < input->items.size(); ++i) {
    reader.Read(input->items[i], fmt::format("input[{}]", i));
  }
  if (!reader.ended()) ContinueLastAnswer(chat);
}

void ReadText(const RequestFields& fields, ChatRequest* chat) {
  const JsonValue* text = fields.Object("text");
  if (text == nullptr) return;
  if (const JsonValue* format = text->FindSet("format")) ReadFormat(*format, "text.format", chat);
  if (text->FindSet("verbosity") != nullptr) chat->AddNote("text.verbosity has no effect");
}

// What an answer says back of its request, as it was sent.
JsonValue EchoedFields(const JsonValue& body) {
  JsonValue echoed;
  echoed.kind = JsonValue::Kind::kObject;
  for (const char* key :
       {"instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "prompt_cache_key",
        "reasoning", "safety_identifier", "service_tier", "temperature", "text", "tool_choice",
        "tools", "top_logprobs", "top_p", "truncation", "user"}) {
    if (const JsonValue* value = body.FindSet(key)) echoed.members.push_back({key, *value});
  }
  return echoed;
}

}  // namespace

ApiRequest ReadResponsesApi(const JsonValue& body, const ServedModel& model) {
  const RequestFields fields(body);
  ChatRequest chat;
  CheckFields(Api::kResponses, body, &chat);
  ReadInstructions(fields, &chat);
  ReadInput(fields.Find("input"), &chat);
  if (const JsonValue* tools = fields.Find("tools")) ReadTools(*tools, "tools", &chat);
  if (const JsonValue* choice = fields.Find("tool_choice")) ReadToolChoice(*choice, &chat);
  ReadThinking(fields, model, &chat);
  ReadText(fields, &chat);
  NoteIneffective(fields, &chat);
  if (fields.Count("top_logprobs", 0, kMaxAnswer).value_or(0) > 0) {
    throw ApiError(400, "top_logprobs: not supported here; use /v1/chat/completions");
  }

  ApiRequest request;
  request.echoed = EchoedFields(body);
  request.encrypted_reasoning = WantsEncrypted(fields, &chat);
  ReadGeneration(fields, model, &request);
  FinishChatRequest(std::move(chat), fields.Limit("max_output_tokens", 1), model, &request);
  return request;
}

}  // namespace thimble::server
