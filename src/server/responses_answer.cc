#include <optional>
#include <string>

#include "server/api.h"
#include "server/sse.h"

// Answers of OpenAI's /v1/responses.

namespace thimble::server {
namespace {

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

}  // namespace

std::unique_ptr<ApiAnswer> NewResponsesAnswer(const ServedModel& model, const ApiRequest& request) {
  return std::make_unique<ResponsesAnswer>(model, request);
}

}  // namespace thimble::server
