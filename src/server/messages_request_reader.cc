#include <fmt/format.h>

#include <optional>
#include <utility>

#include "chat/content_reader.h"
#include "server/api.h"
#include "server/field_policy.h"
#include "server/request_fields.h"
#include "server/thinking_fields.h"
#include "server/tool_reader.h"

// Requests of Anthropic's /v1/messages.

namespace thimble::server {
namespace {

std::string RequireText(const JsonValue& object, const std::string& key, const std::string& path) {
  const JsonValue* value = object.FindSet(key);
  if (value == nullptr || !value->is_string()) Refuse(path + "." + key, "a string");
  return value->text;
}

ChatMessage NewMessage(ChatRole role) {
  ChatMessage message;
  message.role = role;
  return message;
}

// The messages of a conversation from Anthropic's, whose blocks mix what OpenAI's keep apart:
// results of tools become messages of their own, before a user's text and inside an answer where
// the server's tools left them.
class ConversationReader {
 public:
  explicit ConversationReader(ChatRequest* chat) : chat_(chat), content_(chat) {}

  void ReadSystem(const JsonValue* system) {
    std::vector<ContentPart> parts = content_.Read(system, "system");
    ChatMessage message = NewMessage(ChatRole::kSystem);
    std::string text;
    for (ContentPart& part : parts) {
      DropAttribution(&part.text, chat_);
      text += part.text;
    }
    if (text.empty()) return;
    message.content = {{std::move(text), std::nullopt}};
    chat_->messages.push_back(std::move(message));
  }

  void Read(const JsonValue& value, const std::string& path) {
    if (!value.is_object()) Refuse(path, "an object");
    const std::string role = RequireText(value, "role", path);
    const JsonValue* content = value.FindSet("content");
    message_ = NewMessage(RoleOf(role, path + ".role"));
    num_results_ = 0;
    if (content != nullptr && content->is_array()) {
      for (size_t i = 0; i < content->items.size(); ++i) {
        ReadBlock(content->items[i], fmt::format("{}.content[{}]", path, i));
      }
    } else {
      message_.content = content_.Read(content, path + ".content");
    }
    if (num_results_ == 0 || HoldsAnything()) chat_->messages.push_back(std::move(message_));
  }

 private:
  static ChatRole RoleOf(const std::string& role, const std::string& path) {
    if (role == "user") return ChatRole::kUser;
    if (role == "assistant") return ChatRole::kAssistant;
    if (role == "system" || role == "developer") return ChatRole::kSystem;
    Refuse(path, fmt::format("user, assistant or system, found '{}'", role));
  }
  bool HoldsAnything() const {
    return !message_.content.empty() || !message_.tool_calls.empty() || !message_.reasoning.empty();
  }

  void ReadBlock(const JsonValue& block, const std::string& path) {
    const std::string type = block.is_object() ? FindText(block, "type") : "";
    if (type == "thinking") {
      message_.reasoning += RequireText(block, "thinking", path);
    } else if (type == "redacted_thinking") {
      chat_->AddNote("redacted_thinking of another server was left out");
    } else if (type.ends_with("tool_use")) {
      ReadCall(block, path);
    } else if (type.ends_with("tool_result")) {
      ReadResult(block, path);
    } else {
      message_.content.push_back(content_.ReadPart(block, path));
    }
  }

  // tool_use, and server_tool_use and mcp_tool_use, which another server has run.
  void ReadCall(const JsonValue& block, const std::string& path) {
    ToolCall call;
    call.id = FindText(block, "id");
    call.name = RequireText(block, "name", path);
    if (call.name.empty()) Refuse(path + ".name", "the name of a tool");
    if (const JsonValue* input = block.FindSet("input")) ReadToolArguments(*input, &call);
    message_.tool_calls.push_back(std::move(call));
  }

  // tool_result, and results of tools that another server has run, such as web_search_tool_result.
  void ReadResult(const JsonValue& block, const std::string& path) {
    ChatMessage result = NewMessage(ChatRole::kTool);
    result.tool_call_id = RequireText(block, "tool_use_id", path);
    result.content = content_.Read(block.FindSet("content"), path + ".content");
    const JsonValue* is_error = block.FindSet("is_error");
    if (is_error != nullptr && is_error->boolean) MarkError(&result.content);
    if (message_.role == ChatRole::kAssistant) {
      chat_->messages.push_back(std::exchange(message_, NewMessage(ChatRole::kAssistant)));
    }
    chat_->messages.push_back(std::move(result));
    ++num_results_;
  }

  // The model's format has no place for is_error. Texts of errors mostly say it themselves.
  static void MarkError(std::vector<ContentPart>* content) {
    constexpr size_t kBeginning = 40;
    std::string beginning = TextOf(*content).substr(0, kBeginning);
    for (char& c : beginning) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (beginning.find("error") != std::string::npos) return;
    content->insert(content->begin(), {beginning.empty() ? "Error" : "Error: ", std::nullopt});
  }

  ChatRequest* chat_;
  ContentReader content_;
  ChatMessage message_;     // that is read
  size_t num_results_ = 0;  // in it
};

void ReadMessages(const RequestFields& fields, ChatRequest* chat) {
  ConversationReader reader(chat);
  reader.ReadSystem(fields.Find("system"));
  const JsonValue* messages = fields.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->items.empty()) {
    Refuse("messages", "an array of at least one");
  }
  for (size_t i = 0; i < messages->items.size(); ++i) {
    reader.Read(messages->items[i], fmt::format("messages[{}]", i));
  }
}

void ReadOutputFormat(const RequestFields& fields, ChatRequest* chat) {
  if (const JsonValue* format = fields.Find("output_format")) {
    ReadFormat(*format, "output_format", chat);
  }
  const JsonValue* output = fields.Object("output_config");
  if (output == nullptr) return;
  for (const JsonMember& member : output->members) {
    if (member.value.is_null() || member.key == "effort") continue;
    if (member.key == "format") {
      ReadFormat(member.value, "output_config.format", chat);
    } else {
      chat->AddNote("output_config: only effort and format have an effect");
    }
  }
}

// Histories are computed as they come. Keeping all thoughts, as Claude Code asks, is just that.
void NoteEdits(const RequestFields& fields, ChatRequest* chat) {
  const JsonValue* management = fields.Object("context_management");
  const JsonValue* edits = management == nullptr ? nullptr : management->FindSet("edits");
  for (size_t i = 0; edits != nullptr && i < edits->items.size(); ++i) {
    if (FindText(edits->items[i], "keep") == "all") continue;
    chat->AddNote("context_management: nothing is removed from the conversation");
  }
}

}  // namespace

ApiRequest ReadMessagesApi(const JsonValue& body, const ServedModel& model, bool count_only) {
  const RequestFields fields(body);
  ChatRequest chat;
  ReadMessages(fields, &chat);
  CheckFields(Api::kMessages, body, &chat);
  if (const JsonValue* tools = fields.Find("tools")) ReadTools(*tools, "tools", &chat);
  if (const JsonValue* choice = fields.Find("tool_choice")) ReadToolChoice(*choice, &chat);
  ReadThinking(fields, model, &chat);
  ReadOutputFormat(fields, &chat);
  NoteIneffective(fields, &chat);
  NoteEdits(fields, &chat);
  ContinueLastAnswer(&chat);

  ApiRequest request;
  ReadGeneration(fields, model, &request);
  for (std::string& stop : fields.Stops("stop_sequences")) request.stops.push_back(std::move(stop));
  // 0 computes the prompt alone, so that a later request goes on from it.
  const auto most = fields.Limit("max_tokens", 0);
  if (body.Find("max_tokens") == nullptr && !count_only) {
    Refuse("max_tokens", "a number of tokens, or -1 for no limit");
  }
  try {
    FinishChatRequest(std::move(chat), most, model, &request);
  } catch (const ApiError& error) {
    if (error.code() != "context_length_exceeded") throw;
    // What the clients of this API look for.
    throw ApiError(400, std::string("prompt is too long: ") + error.what(), error.code());
  }
  return request;
}

}  // namespace thimble::server
