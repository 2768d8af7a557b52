#include <optional>

#include "server/api.h"
#include "server/sse.h"

// Answers of Anthropic's /v1/messages.

namespace thimble::server {
namespace {

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

std::unique_ptr<ApiAnswer> NewMessagesAnswer(const ServedModel& model, const ApiRequest& request) {
  return std::make_unique<MessagesAnswer>(model, request);
}

}  // namespace thimble::server
