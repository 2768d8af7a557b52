#include <optional>

#include "server/api.h"
#include "server/sse.h"

// Answers of Anthropic's /v1/messages.

namespace thimble::server {
namespace {

// Nothing is signed here, but some clients send a thought back only if it has a signature.
constexpr const char* kSignature = "thimble";

const char* StopReason(ReplyEnd end) {
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

Json StopJson(const ReplyEnding& ending) {
  const bool by_string = ending.end == ReplyEnd::kStopString;
  return {{"stop_reason", StopReason(ending.end)},
          {"stop_sequence", by_string ? Json(ending.stop) : Json()},
          {"stop_details", nullptr}};
}

Json MessageUsageJson(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens}};
}

Json CallBlock(const ReplyPiece& piece) {
  return {{"type", "tool_use"}, {"id", piece.id}, {"name", piece.text}, {"input", Json::object()}};
}

Json MessageDeltaJson(const ReplyPiece& piece) {
  switch (piece.kind) {
    case ReplyPiece::Kind::kReasoning:
      return {{"type", "thinking_delta"}, {"thinking", piece.text}};
    case ReplyPiece::Kind::kToolArguments:
      return {{"type", "input_json_delta"}, {"partial_json", piece.text}};
    default:
      return {{"type", "text_delta"}, {"text", piece.text}};
  }
}

// The blocks of a whole answer.
Json ContentJson(const std::vector<ReplyPiece>& pieces) {
  Json content = Json::array();
  std::string arguments;
  const auto end_call = [&] {
    if (!arguments.empty()) content.back()["input"] = Json::parse(arguments, nullptr, false);
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
      content.push_back(CallBlock(piece));
    } else {
      const bool thinks = piece.kind == ReplyPiece::Kind::kReasoning;
      const char* key = thinks ? "thinking" : "text";
      if (last != piece.kind) {
        content.push_back({{"type", key}, {key, ""}});
        if (thinks) content.back()["signature"] = kSignature;
      }
      content.back()[key].get_ref<std::string&>() += piece.text;
    }
    last = piece.kind;
  }
  end_call();
  return content;
}

class MessagesAnswer : public ApiAnswer {
 public:
  explicit MessagesAnswer(const ServedModel& model) : model_(model), id_(NewId("msg_")) {}

  // The first event says how much of the prompt was known, which the last must not contradict.
  bool BeginsInQueue() const override { return false; }

  std::string Begin(const Usage& usage) override {
    begun_ = true;
    Json message = Frame(Json::array());
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["stop_details"] = nullptr;
    message["usage"] = MessageUsageJson({usage.prompt_tokens, usage.cached_tokens, 0, 0});
    return Event("message_start", {{"type", "message_start"}, {"message", message}});
  }

  std::string Write(size_t, const std::vector<ReplyPiece>& pieces) override {
    std::string text;
    for (const ReplyPiece& piece : pieces) {
      if (piece.kind == ReplyPiece::Kind::kToolCall) {
        text += Close();
        text += Open(CallBlock(piece), piece.kind);
        continue;
      }
      const bool is_arguments = piece.kind == ReplyPiece::Kind::kToolArguments;
      if (!is_arguments && open_ != piece.kind) {
        text += Close();
        text += piece.kind == ReplyPiece::Kind::kReasoning
                    ? Open({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, piece.kind)
                    : Open({{"type", "text"}, {"text", ""}}, piece.kind);
      }
      text += Delta(MessageDeltaJson(piece));
    }
    return text;
  }

  std::string EndChoice(size_t, const ReplyEnding& ending) override {
    ending_ = ending;
    return Close();
  }

  std::string End(const Usage& usage) override {
    return Event("message_delta", {{"type", "message_delta"},
                                   {"delta", StopJson(ending_)},
                                   {"usage", MessageUsageJson(usage)}}) +
           Event("message_stop", {{"type", "message_stop"}});
  }

  std::string Fail(const std::string& message) override {
    return "event: error\ndata: " + WriteApiError(Api::kMessages, ApiError(500, message)) + "\n\n";
  }

  // A comment too, which says more; alone before the first event, which must be message_start.
  std::string KeepAlive(const std::string& note) override {
    const std::string comment = Comment("keepalive " + note);
    return begun_ ? comment + Event("ping", {{"type", "ping"}}) : comment;
  }

  std::string Whole(const std::vector<Reply>& replies, const Usage& usage) override {
    Json json = Frame(ContentJson(replies.front().pieces));
    json.update(StopJson(replies.front().ending));
    json["usage"] = MessageUsageJson(usage);
    return Dump(json);
  }

 private:
  Json Frame(const Json& content) const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_.name},
            {"content", content}};
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
      text = Delta({{"type", "signature_delta"}, {"signature", kSignature}});
    }
    open_.reset();
    return text + Event("content_block_stop",
                        {{"type", "content_block_stop"}, {"index", num_blocks_ - 1}});
  }

  const ServedModel& model_;
  const std::string id_;
  bool begun_ = false;
  size_t num_blocks_ = 0;
  std::optional<ReplyPiece::Kind> open_;
  ReplyEnding ending_;
};

}  // namespace

std::unique_ptr<ApiAnswer> NewMessagesAnswer(const ServedModel& model, const ApiRequest&) {
  return std::make_unique<MessagesAnswer>(model);
}

}  // namespace thimble::server
