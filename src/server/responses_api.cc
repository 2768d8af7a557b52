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
// Of such a content, which is the thought in clear: it is the client's own. Tells it from those of
// other servers, which mean nothing here.
constexpr std::string_view kThoughtMark = "thimble:";

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

class ResponsesAnswer : public ApiAnswer {
 public:
  ResponsesAnswer(const ServedModel& model, const ApiRequest& request)
      : model_(model), encrypted_(request.encrypted_reasoning), id_(NewId("resp_")) {}

  std::string Begin() override {
    std::string text = Send("response.created", {{"response", Frame("in_progress")}});
    text += Send("response.in_progress", {{"response", Frame("in_progress")}});
    return text;
  }

  std::string Write(const std::vector<ReplyPiece>& pieces) override {
    std::string text;
    for (const ReplyPiece& piece : pieces) {
      if (piece.kind == ReplyPiece::Kind::kToolCall) {
        text += Close();
        text += Open(piece.kind, {{"type", "function_call"},
                                  {"id", NewId("fc_")},
                                  {"call_id", piece.id},
                                  {"name", piece.text},
                                  {"arguments", ""},
                                  {"status", "in_progress"}});
        continue;
      }
      const bool is_arguments = piece.kind == ReplyPiece::Kind::kToolArguments;
      if (!is_arguments && open_ != piece.kind) {
        text += Close();
        text += piece.kind == ReplyPiece::Kind::kReasoning ? OpenReasoning() : OpenMessage();
      }
      text_ += piece.text;
      Json event = {{"item_id", item_["id"]}, {"output_index", output_.size()}};
      if (!is_arguments) event["content_index"] = 0;
      event["delta"] = piece.text;
      text += Send(DeltaName(piece.kind), event);
    }
    return text;
  }

  std::string End(ReplyEnd end, const Usage& usage) override {
    const std::string text = Close();
    const bool is_cut = end == ReplyEnd::kLength;
    Json response = Frame(is_cut ? "incomplete" : "completed");
    if (is_cut) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response["usage"] = {{"input_tokens", usage.prompt_tokens},
                         {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
                         {"output_tokens", usage.completion_tokens},
                         {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
                         {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
    whole_ = response;
    return text +
           Send(is_cut ? "response.incomplete" : "response.completed", {{"response", response}});
  }

  std::string Fail(const std::string& message) override {
    Json response = Frame("failed");
    response["error"] = {{"code", "server_error"}, {"message", message}};
    return Send("response.failed", {{"response", response}});
  }
  // An event too: Codex counts the seconds since the last one.
  std::string KeepAlive(const std::string& note) override {
    return Comment("keepalive " + note) + Send("keepalive", Json::object());
  }

  std::string Whole(const std::vector<ReplyPiece>& pieces, ReplyEnd end,
                    const Usage& usage) override {
    Write(pieces);
    End(end, usage);
    return Dump(whole_);
  }

 private:
  Json Frame(const char* status) const {
    return {{"id", id_},
            {"object", "response"},
            {"created_at", model_.created},
            {"status", status},
            {"error", nullptr},
            {"incomplete_details", nullptr},
            {"model", model_.name},
            {"output", output_},
            {"parallel_tool_calls", true},
            {"store", false},
            {"tool_choice", "auto"},
            {"tools", Json::array()}};
  }
  std::string Send(const std::string& type, Json fields) {
    fields["type"] = type;
    fields["sequence_number"] = sequence_++;
    return Event(type, fields);
  }
  static const char* DeltaName(ReplyPiece::Kind kind) {
    if (kind == ReplyPiece::Kind::kReasoning) return "response.reasoning_text.delta";
    if (kind == ReplyPiece::Kind::kContent) return "response.output_text.delta";
    return "response.function_call_arguments.delta";
  }
  std::string Open(ReplyPiece::Kind kind, const Json& item) {
    open_ = kind;
    item_ = item;
    text_.clear();
    return Send("response.output_item.added", {{"output_index", output_.size()}, {"item", item}});
  }
  std::string OpenReasoning() {
    return Open(ReplyPiece::Kind::kReasoning, {{"type", "reasoning"},
                                               {"id", NewId("rs_")},
                                               {"summary", Json::array()},
                                               {"content", Json::array()}});
  }
  std::string OpenMessage() {
    const std::string text = Open(ReplyPiece::Kind::kContent, {{"type", "message"},
                                                               {"id", NewId("msg_")},
                                                               {"status", "in_progress"},
                                                               {"role", "assistant"},
                                                               {"content", Json::array()}});
    return text + Send("response.content_part.added", {{"item_id", item_["id"]},
                                                       {"output_index", output_.size()},
                                                       {"content_index", 0},
                                                       {"part", TextPart("")}});
  }
  static Json TextPart(const std::string& text) {
    return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}};
  }

  std::string Close() {
    if (!open_) return {};
    std::string text;
    Json event = {{"item_id", item_["id"]}, {"output_index", output_.size()}};
    if (open_ == ReplyPiece::Kind::kToolCall) {
      item_["arguments"] = text_.empty() ? "{}" : text_;
      item_["status"] = "completed";
      event["arguments"] = item_["arguments"];
      text += Send("response.function_call_arguments.done", event);
    } else if (open_ == ReplyPiece::Kind::kReasoning) {
      const Json part = {{"type", "reasoning_text"}, {"text", text_}};
      item_["content"] = Json::array({part});
      if (encrypted_) item_["encrypted_content"] = std::string(kThoughtMark) + text_;
      event["content_index"] = 0;
      event["text"] = text_;
      text += Send("response.reasoning_text.done", event);
    } else {
      item_["content"] = Json::array({TextPart(text_)});
      item_["status"] = "completed";
      event["content_index"] = 0;
      Json part = event;
      event["text"] = text_;
      text += Send("response.output_text.done", event);
      part["part"] = TextPart(text_);
      text += Send("response.content_part.done", part);
    }
    text += Send("response.output_item.done", {{"output_index", output_.size()}, {"item", item_}});
    output_.push_back(item_);
    open_.reset();
    return text;
  }

  const ServedModel& model_;
  const bool encrypted_;
  const std::string id_;
  size_t sequence_ = 0;
  Json output_ = Json::array();
  Json whole_;
  std::optional<ReplyPiece::Kind> open_;
  Json item_;         // that is open
  std::string text_;  // of it so far
};

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

std::unique_ptr<ApiAnswer> NewResponsesAnswer(const ServedModel& model, const ApiRequest& request) {
  return std::make_unique<ResponsesAnswer>(model, request);
}

}  // namespace thimble::server
