#include <map>
#include <optional>
#include <string>

#include "server/api.h"
#include "server/sse.h"

// Answers of OpenAI's /v1/responses. An answer is a list of items (thought, message, call); a
// thought and a message have one part of content. In a stream each item and each part is added,
// told in deltas, and done.

namespace thimble::server {
namespace {

using Kind = ReplyPiece::Kind;

// What is said of the request where it did not say it.
const std::map<std::string, Json>& Defaults() {
  static const std::map<std::string, Json> defaults = {
      {"background", false},
      {"instructions", nullptr},
      {"max_output_tokens", nullptr},
      {"metadata", Json::object()},
      {"parallel_tool_calls", true},
      {"previous_response_id", nullptr},
      {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
      {"text", {{"format", {{"type", "text"}}}}},
      {"tool_choice", "auto"},
      {"tools", Json::array()},
      {"top_logprobs", 0},
      {"truncation", "disabled"}};
  return defaults;
}

Json EchoJson(const ServedModel& model, const ApiRequest& request) {
  Json json = Json::object();
  for (const auto& [key, value] : Defaults()) json[key] = value;
  json["temperature"] = model.sampling.temperature;
  json["top_p"] = model.sampling.top_p;
  for (const JsonMember& member : request.echoed.members) {
    json[member.key] = Json::parse(WriteJson(member.value, JsonStyle::kCompact));
  }
  json["store"] = false;
  return json;
}

const char* PartEvent(Kind kind) {
  return kind == Kind::kReasoning ? "response.reasoning_text" : "response.output_text";
}

Json PartJson(Kind kind, const std::string& text) {
  if (kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", Json::array()},
          {"logprobs", Json::array()}};
}

Json ResponseUsageJson(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

class ResponsesAnswer : public ApiAnswer {
 public:
  ResponsesAnswer(const ServedModel& model, const ApiRequest& request)
      : model_(model),
        encrypted_(request.encrypted_reasoning),
        echo_(EchoJson(model, request)),
        id_(NewId("resp_")),
        created_(UnixTime()) {}

  std::string Begin(const Usage&) override {
    std::string text = Send("response.created", {{"response", Frame("in_progress")}});
    text += Send("response.in_progress", {{"response", Frame("in_progress")}});
    return text;
  }

  std::string Write(size_t, const std::vector<ReplyPiece>& pieces) override {
    std::string text;
    for (const ReplyPiece& piece : pieces) {
      if (piece.kind == Kind::kToolCall) {
        text += Close("completed");
        text += OpenCall(piece);
        continue;
      }
      const bool is_arguments = piece.kind == Kind::kToolArguments;
      if (!is_arguments && open_ != piece.kind) {
        text += Close("completed");
        text += piece.kind == Kind::kReasoning ? OpenReasoning() : OpenMessage();
      }
      text_ += piece.text;
      text += is_arguments ? SendArguments(piece.text) : SendText(piece);
    }
    return text;
  }

  std::string EndChoice(size_t, const ReplyEnding& ending) override {
    is_cut_ = ending.end == ReplyEnd::kLength;
    return Close(is_cut_ ? "incomplete" : "completed");
  }

  std::string End(const Usage& usage) override {
    const char* type = is_cut_ ? "response.incomplete" : "response.completed";
    return Send(type, {{"response", Ended(usage)}});
  }

  // Two events: some clients look for the one, some for the other.
  std::string Fail(const std::string& message) override {
    std::string text = Close("incomplete");
    const Json error = {{"type", "server_error"},
                        {"code", "server_error"},
                        {"message", message},
                        {"param", nullptr}};
    text += Send(
        "error",
        {{"code", "server_error"}, {"message", message}, {"param", nullptr}, {"error", error}});
    Json response = Frame("failed");
    response["error"] = {{"code", "server_error"}, {"message", message}};
    return text + Send("response.failed", {{"response", response}});
  }

  // An event too: Codex counts the seconds since the last one.
  std::string KeepAlive(const std::string& note) override {
    return Comment("keepalive " + note) + Send("keepalive", Json::object());
  }

  std::string Whole(const std::vector<Reply>& replies, const Usage& usage) override {
    Write(0, replies.front().pieces);
    EndChoice(0, replies.front().ending);
    return Dump(Ended(usage));
  }

 private:
  Json Frame(const char* status) const {
    Json frame = {{"id", id_},
                  {"object", "response"},
                  {"created_at", created_},
                  {"status", status},
                  {"error", nullptr},
                  {"incomplete_details", nullptr},
                  {"model", model_.name},
                  {"output", output_},
                  {"usage", nullptr}};
    frame.update(echo_);
    return frame;
  }
  Json Ended(const Usage& usage) const {
    Json response = Frame(is_cut_ ? "incomplete" : "completed");
    if (is_cut_) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response["usage"] = ResponseUsageJson(usage);
    return response;
  }

  std::string Send(const std::string& type, const Json& fields) {
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(fields);
    return Event(type, event);
  }
  // What events inside the open item have in common.
  Json InItem() const { return {{"item_id", item_["id"]}, {"output_index", output_.size()}}; }
  Json InPart() const {
    Json event = InItem();
    event["content_index"] = 0;
    return event;
  }

  std::string Open(Kind kind, const Json& item) {
    open_ = kind;
    item_ = item;
    text_.clear();
    return Send("response.output_item.added", {{"output_index", output_.size()}, {"item", item}});
  }
  std::string OpenCall(const ReplyPiece& piece) {
    return Open(piece.kind, {{"type", "function_call"},
                             {"id", NewId("fc_")},
                             {"call_id", piece.id},
                             {"name", piece.text},
                             {"arguments", ""},
                             {"status", "in_progress"}});
  }
  std::string OpenReasoning() {
    const std::string text = Open(Kind::kReasoning, {{"type", "reasoning"},
                                                     {"id", NewId("rs_")},
                                                     {"summary", Json::array()},
                                                     {"content", Json::array()},
                                                     {"status", "in_progress"}});
    return text + OpenPart();
  }
  std::string OpenMessage() {
    const std::string text = Open(Kind::kContent, {{"type", "message"},
                                                   {"id", NewId("msg_")},
                                                   {"status", "in_progress"},
                                                   {"role", "assistant"},
                                                   {"content", Json::array()}});
    return text + OpenPart();
  }
  std::string OpenPart() {
    Json event = InPart();
    event["part"] = PartJson(*open_, "");
    return Send("response.content_part.added", event);
  }

  std::string SendText(const ReplyPiece& piece) {
    Json event = InPart();
    event["delta"] = piece.text;
    if (piece.kind == Kind::kContent) event["logprobs"] = Json::array();
    return Send(PartEvent(piece.kind) + std::string(".delta"), event);
  }
  std::string SendArguments(const std::string& delta) {
    Json event = InItem();
    event["delta"] = delta;
    return Send("response.function_call_arguments.delta", event);
  }

  // Ends the open item, if there is one.
  std::string Close(const char* status) {
    if (!open_) return {};
    std::string text = open_ == Kind::kToolCall ? CloseCall() : ClosePart();
    item_["status"] = status;
    if (open_ == Kind::kReasoning && encrypted_) {
      item_["encrypted_content"] = std::string(kThoughtMark) + text_;
    }
    text += Send("response.output_item.done", {{"output_index", output_.size()}, {"item", item_}});
    output_.push_back(item_);
    open_.reset();
    return text;
  }
  std::string CloseCall() {
    item_["arguments"] = text_;
    Json event = InItem();
    event["name"] = item_["name"];
    event["arguments"] = text_;
    return Send("response.function_call_arguments.done", event);
  }
  std::string ClosePart() {
    Json event = InPart();
    event["text"] = text_;
    if (open_ == Kind::kContent) event["logprobs"] = Json::array();
    std::string text = Send(PartEvent(*open_) + std::string(".done"), event);
    const Json part = PartJson(*open_, text_);
    item_["content"] = Json::array({part});
    Json done = InPart();
    done["part"] = part;
    return text + Send("response.content_part.done", done);
  }

  const ServedModel& model_;
  const bool encrypted_;
  const Json echo_;
  const std::string id_;
  const int64_t created_;
  size_t sequence_ = 0;
  bool is_cut_ = false;
  Json output_ = Json::array();
  std::optional<Kind> open_;
  Json item_;         // that is open
  std::string text_;  // of it so far
};

}  // namespace

std::unique_ptr<ApiAnswer> NewResponsesAnswer(const ServedModel& model, const ApiRequest& request) {
  return std::make_unique<ResponsesAnswer>(model, request);
}

}  // namespace thimble::server
