#include "server/api.h"
#include "server/sse.h"

// Answers of OpenAI's /v1/chat/completions.

namespace thimble::server {
namespace {

Json LogprobsJson(const Tokenizer& tokenizer, const std::vector<SampledToken>& tokens) {
  const auto describe = [&](TokenId id, float logprob) {
    const std::string bytes(tokenizer.TokenBytes(id));
    Json json = {{"token", bytes}, {"logprob", logprob}, {"bytes", Json::array()}};
    for (const char c : bytes) json["bytes"].push_back(static_cast<unsigned char>(c));
    return json;
  };
  Json content = Json::array();
  for (const SampledToken& token : tokens) {
    Json json = describe(token.id, token.logprob);
    json["top_logprobs"] = Json::array();
    for (const TokenLogprob& top : token.top) {
      json["top_logprobs"].push_back(describe(top.id, top.logprob));
    }
    content.push_back(json);
  }
  return {{"content", content}};
}

Json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

const char* FinishReasonText(ReplyEnd end) {
  switch (end) {
    case ReplyEnd::kLength:
      return "length";
    case ReplyEnd::kToolCalls:
      return "tool_calls";
    case ReplyEnd::kStop:
    case ReplyEnd::kStopString:
      break;
  }
  return "stop";
}

class ChatAnswer : public ApiAnswer {
 public:
  ChatAnswer(const ServedModel& model, const ApiRequest& request)
      : model_(model),
        logprobs_(request.logprobs),
        include_usage_(request.include_usage),
        id_(NewId("chatcmpl-")) {}

  std::string Begin() override { return Chunk({{"role", "assistant"}, {"content", ""}}, nullptr); }

  std::string Write(const std::vector<ReplyPiece>& pieces) override {
    std::string text;
    for (const ReplyPiece& piece : pieces) {
      const Json logprobs = logprobs_ && piece.kind == ReplyPiece::Kind::kContent
                                ? LogprobsJson(*model_.tokenizer, piece.tokens)
                                : Json();
      text += Chunk(Delta(piece), nullptr, logprobs);
    }
    return text;
  }

  std::string End(ReplyEnd end, const Usage& usage) override {
    std::string text = Chunk(Json::object(), FinishReasonText(end));
    if (include_usage_) {
      Json json = Frame("chat.completion.chunk");
      json["choices"] = Json::array();
      json["usage"] = UsageJson(usage);
      text += Event(json);
    }
    return text + "data: [DONE]\n\n";
  }

  std::string Fail(const std::string& message) override {
    return "data: " + WriteApiError(Api::kChat, ApiError(500, message)) + "\n\ndata: [DONE]\n\n";
  }

  std::string KeepAlive(const std::string& note) override { return Comment("keepalive " + note); }

  std::string Whole(const std::vector<ReplyPiece>& pieces, ReplyEnd end,
                    const Usage& usage) override {
    std::string reasoning;
    std::string content;
    Json calls = Json::array();
    std::vector<SampledToken> tokens;
    for (const ReplyPiece& piece : pieces) {
      if (piece.kind == ReplyPiece::Kind::kReasoning) {
        reasoning += piece.text;
      } else if (piece.kind == ReplyPiece::Kind::kContent) {
        content += piece.text;
        tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
      } else if (piece.kind == ReplyPiece::Kind::kToolCall) {
        calls.push_back({{"id", piece.id},
                         {"type", "function"},
                         {"function", {{"name", piece.text}, {"arguments", ""}}}});
      } else {
        auto& arguments = calls.back()["function"]["arguments"].get_ref<std::string&>();
        arguments += piece.text;
      }
    }
    Json message = {{"role", "assistant"}, {"content", content}};
    if (!reasoning.empty()) message["reasoning_content"] = reasoning;
    if (!calls.empty()) message["tool_calls"] = calls;
    Json json = Frame("chat.completion");
    const Json choice = {{"index", 0},
                         {"message", message},
                         {"logprobs", logprobs_ ? LogprobsJson(*model_.tokenizer, tokens) : Json()},
                         {"finish_reason", FinishReasonText(end)}};
    json["choices"] = Json::array({choice});
    json["usage"] = UsageJson(usage);
    return Dump(json);
  }

 private:
  Json Frame(const char* object) const {
    return {{"id", id_}, {"object", object}, {"created", model_.created}, {"model", model_.name}};
  }

  std::string Chunk(const Json& delta, const Json& reason, const Json& logprobs = {}) const {
    Json json = Frame("chat.completion.chunk");
    Json choice = {{"index", 0}, {"delta", delta}};
    if (!logprobs.is_null()) choice["logprobs"] = logprobs;
    choice["finish_reason"] = reason;
    json["choices"] = Json::array({choice});
    return Event(json);
  }

  static Json Delta(const ReplyPiece& piece) {
    switch (piece.kind) {
      case ReplyPiece::Kind::kReasoning:
        return {{"reasoning_content", piece.text}};
      case ReplyPiece::Kind::kContent:
        return {{"content", piece.text}};
      case ReplyPiece::Kind::kToolCall: {
        const Json call = {{"index", piece.index},
                           {"id", piece.id},
                           {"type", "function"},
                           {"function", {{"name", piece.text}, {"arguments", ""}}}};
        return {{"tool_calls", Json::array({call})}};
      }
      case ReplyPiece::Kind::kToolArguments: {
        const Json call = {{"index", piece.index}, {"function", {{"arguments", piece.text}}}};
        return {{"tool_calls", Json::array({call})}};
      }
    }
    return Json::object();
  }

  const ServedModel& model_;
  const bool logprobs_;
  const bool include_usage_;
  const std::string id_;
};

}  // namespace

std::unique_ptr<ApiAnswer> NewChatAnswer(const ServedModel& model, const ApiRequest& request) {
  return std::make_unique<ChatAnswer>(model, request);
}

}  // namespace thimble::server
