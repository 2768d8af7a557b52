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

class MessagesAnswer : public ApiAnswer {
 public:
  MessagesAnswer(const ServedModel& model, const ApiRequest& request)
      : model_(model), prompt_tokens_(request.job.prompt.size()), id_(NewId("msg_")) {}

  std::string Begin() override {
    Json message = Frame();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = {{"input_tokens", prompt_tokens_}, {"output_tokens", 0}};
    return Event("message_start", {{"type", "message_start"}, {"message", message}});
  }

  std::string Write(const std::vector<ReplyPiece>& pieces) override {
    std::string text;
    for (const ReplyPiece& piece : pieces) {
      if (piece.kind == ReplyPiece::Kind::kToolCall) {
        text += Close();
        text += Open({{"type", "tool_use"},
                      {"id", piece.id},
                      {"name", piece.text},
                      {"input", Json::object()}},
                     piece.kind);
        continue;
      }
      const bool is_arguments = piece.kind == ReplyPiece::Kind::kToolArguments;
      if (!is_arguments && open_ != piece.kind) {
        text += Close();
        text += piece.kind == ReplyPiece::Kind::kReasoning
                    ? Open({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, piece.kind)
                    : Open({{"type", "text"}, {"text", ""}}, piece.kind);
      }
      text += Delta(DeltaOf(piece));
    }
    return text;
  }

  std::string End(ReplyEnd end, const Usage& usage) override {
    std::string text = Close();
    text += Event("message_delta",
                  {{"type", "message_delta"},
                   {"delta", {{"stop_reason", Reason(end)}, {"stop_sequence", nullptr}}},
                   {"usage",
                    {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
                     {"cache_read_input_tokens", usage.cached_tokens},
                     {"output_tokens", usage.completion_tokens}}}});
    return text + Event("message_stop", {{"type", "message_stop"}});
  }

  std::string Fail(const std::string& message) override {
    return "event: error\ndata: " + WriteApiError(Api::kMessages, ApiError(500, message)) + "\n\n";
  }
  // A comment too, which says more.
  std::string KeepAlive(const std::string& note) override {
    return Comment("keepalive " + note) + Event("ping", {{"type", "ping"}});
  }

  std::string Whole(const std::vector<ReplyPiece>& pieces, ReplyEnd end,
                    const Usage& usage) override {
    Json content = Json::array();
    std::string arguments;
    const auto end_call = [&] {
      if (arguments.empty()) return;
      Json input = Json::parse(arguments, nullptr, false);
      content.back()["input"] = input.is_object() ? input : Json{{"raw", arguments}};
      arguments.clear();
    };
    std::optional<ReplyPiece::Kind> last;
    for (const ReplyPiece& piece : pieces) {
      if (piece.kind == ReplyPiece::Kind::kToolArguments) {
        arguments += piece.text;
        continue;
      }
      end_call();
      if (piece.kind == ReplyPiece::Kind::kToolCall) {
        content.push_back({{"type", "tool_use"},
                           {"id", piece.id},
                           {"name", piece.text},
                           {"input", Json::object()}});
      } else {
        const bool thinks = piece.kind == ReplyPiece::Kind::kReasoning;
        const char* key = thinks ? "thinking" : "text";
        if (last != piece.kind) {
          content.push_back({{"type", key}, {key, ""}});
          if (thinks) content.back()["signature"] = "";
        }
        content.back()[key].get_ref<std::string&>() += piece.text;
      }
      last = piece.kind;
    }
    end_call();
    Json json = Frame();
    json["content"] = content;
    json["stop_reason"] = Reason(end);
    json["stop_sequence"] = nullptr;
    json["usage"] = {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
                     {"cache_read_input_tokens", usage.cached_tokens},
                     {"output_tokens", usage.completion_tokens}};
    return Dump(json);
  }

 private:
  Json Frame() const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_.name},
            {"content", Json::array()}};
  }
  static const char* Reason(ReplyEnd end) {
    switch (end) {
      case ReplyEnd::kLength:
        return "max_tokens";
      case ReplyEnd::kToolCalls:
        return "tool_use";
      case ReplyEnd::kStopString:
        return "stop_sequence";
      case ReplyEnd::kStop:
        break;
    }
    return "end_turn";
  }
  static Json DeltaOf(const ReplyPiece& piece) {
    switch (piece.kind) {
      case ReplyPiece::Kind::kReasoning:
        return {{"type", "thinking_delta"}, {"thinking", piece.text}};
      case ReplyPiece::Kind::kToolArguments:
        return {{"type", "input_json_delta"}, {"partial_json", piece.text}};
      default:
        return {{"type", "text_delta"}, {"text", piece.text}};
    }
  }
  std::string Delta(const Json& delta) const {
    return Event("content_block_delta",
                 {{"type", "content_block_delta"}, {"index", num_blocks_ - 1}, {"delta", delta}});
  }
  std::string Open(const Json& block, ReplyPiece::Kind kind) {
    open_ = kind;
    return Event(
        "content_block_start",
        {{"type", "content_block_start"}, {"index", num_blocks_++}, {"content_block", block}});
  }
  std::string Close() {
    if (!open_) return {};
    std::string text;
    if (open_ == ReplyPiece::Kind::kReasoning) {
      text = Delta({{"type", "signature_delta"}, {"signature", ""}});
    }
    open_.reset();
    return text + Event("content_block_stop",
                        {{"type", "content_block_stop"}, {"index", num_blocks_ - 1}});
  }

  const ServedModel& model_;
  const size_t prompt_tokens_;
  const std::string id_;
  size_t num_blocks_ = 0;
  std::optional<ReplyPiece::Kind> open_;
};

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

std::unique_ptr<ApiAnswer> NewMessagesAnswer(const ServedModel& model, const ApiRequest& request) {
  return std::make_unique<MessagesAnswer>(model, request);
}

}  // namespace thimble::server
