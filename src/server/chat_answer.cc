#include "server/api.h"
#include "server/sse.h"

// Answers of OpenAI's /v1/chat/completions.

namespace thimble::server {
namespace {

Json LogprobsJson(const Tokenizer& tokenizer, const std::vector<SampledToken>& tokens) {
  const auto describe = [&](TokenId id, double logprob) {
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
  return {{"content", content}, {"refusal", nullptr}};
}

Json ChatUsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

const char* FinishReasonText(ReplyEnd end, bool legacy) {
  switch (end) {
    case ReplyEnd::kLength:
      return "length";
    case ReplyEnd::kToolCalls:
      return legacy ? "function_call" : "tool_calls";
    case ReplyEnd::kStop:
    case ReplyEnd::kStopString:
      break;
  }
  return "stop";
}

Json CallJson(const ReplyPiece& piece) {
  return {{"id", piece.id},
          {"type", "function"},
          {"function", {{"name", piece.text}, {"arguments", ""}}}};
}

Json ChatDeltaJson(const ReplyPiece& piece) {
  Json call = {{"index", piece.index}};
  switch (piece.kind) {
    case ReplyPiece::Kind::kReasoning:
      return {{"reasoning_content", piece.text}};
    case ReplyPiece::Kind::kContent:
      return {{"content", piece.text}};
    case ReplyPiece::Kind::kToolCall:
      call.update(CallJson(piece));
      return {{"tool_calls", Json::array({call})}};
    case ReplyPiece::Kind::kToolArguments:
      call["function"] = {{"arguments", piece.text}};
      return {{"tool_calls", Json::array({call})}};
    case ReplyPiece::Kind::kPrompt:
      break;  // only completions say it back
  }
  return Json::object();
}

// The same where calls are OpenAI's older function_call, of which an answer has one; empty for the
// further ones.
Json LegacyDelta(const ReplyPiece& piece) {
  const bool is_call = piece.kind == ReplyPiece::Kind::kToolCall;
  if (!is_call && piece.kind != ReplyPiece::Kind::kToolArguments) return ChatDeltaJson(piece);
  if (piece.index > 0) return Json::object();
  if (is_call) return {{"function_call", {{"name", piece.text}, {"arguments", ""}}}};
  return {{"function_call", {{"arguments", piece.text}}}};
}

class ChatAnswer : public ApiAnswer {
 public:
  ChatAnswer(const ServedModel& model, const ApiRequest& request)
      : model_(model),
        num_choices_(request.num_choices),
        logprobs_(request.logprobs),
        legacy_(request.legacy_functions),
        include_usage_(request.include_usage),
        id_(NewId("chatcmpl-")),
        created_(UnixTime()) {}

  std::string Begin(const Usage&) override {
    std::string text;
    for (size_t i = 0; i < num_choices_; ++i) {
      text += Chunk(i, {{"role", "assistant"}, {"content", ""}}, nullptr);
    }
    return text;
  }

  std::string Write(size_t choice, const std::vector<ReplyPiece>& pieces) override {
    std::string text;
    for (const ReplyPiece& piece : pieces) {
      const Json logprobs = logprobs_ && piece.kind == ReplyPiece::Kind::kContent
                                ? LogprobsJson(*model_.tokenizer, piece.tokens)
                                : Json();
      const Json delta = legacy_ ? LegacyDelta(piece) : ChatDeltaJson(piece);
      if (!delta.empty()) text += Chunk(choice, delta, nullptr, logprobs);
    }
    return text;
  }

  std::string EndChoice(size_t choice, const ReplyEnding& ending) override {
    return Chunk(choice, Json::object(), FinishReasonText(ending.end, legacy_),
                 logprobs_ ? LogprobsJson(*model_.tokenizer, {}) : Json());
  }

  std::string End(const Usage& usage) override {
    std::string text;
    if (include_usage_) {
      Json json = Frame("chat.completion.chunk");
      json["choices"] = Json::array();
      json["usage"] = ChatUsageJson(usage);
      text = Event(json);
    }
    return text + "data: [DONE]\n\n";
  }

  std::string Fail(const std::string& message) override {
    return "data: " + WriteApiError(Api::kChat, ApiError(500, message)) + "\n\ndata: [DONE]\n\n";
  }

  std::string KeepAlive(const std::string& note) override { return Comment("keepalive " + note); }

  std::string Whole(const std::vector<Reply>& replies, const Usage& usage) override {
    Json json = Frame("chat.completion");
    json["choices"] = Json::array();
    for (size_t i = 0; i < replies.size(); ++i) json["choices"].push_back(Choice(i, replies[i]));
    json["usage"] = ChatUsageJson(usage);
    return Dump(json);
  }

 private:
  Json Frame(const char* object) const {
    return {{"id", id_},
            {"object", object},
            {"created", created_},
            {"model", model_.name},
            {"system_fingerprint", model_.fingerprint.empty() ? Json() : Json(model_.fingerprint)}};
  }

  Json Choice(size_t index, const Reply& reply) const {
    std::string reasoning;
    std::string content;
    Json calls = Json::array();
    std::vector<SampledToken> tokens;
    for (const ReplyPiece& piece : reply.pieces) {
      if (piece.kind == ReplyPiece::Kind::kReasoning) {
        reasoning += piece.text;
      } else if (piece.kind == ReplyPiece::Kind::kContent) {
        content += piece.text;
        tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
      } else if (piece.kind == ReplyPiece::Kind::kToolCall) {
        calls.push_back(CallJson(piece));
      } else if (piece.kind == ReplyPiece::Kind::kToolArguments) {
        calls.back()["function"]["arguments"].get_ref<std::string&>() += piece.text;
      }
    }
    // None is null, which is what the official clients make of a stream without any.
    Json message = {{"role", "assistant"},
                    {"content", content.empty() ? Json() : Json(content)},
                    {"refusal", nullptr}};
    if (!reasoning.empty()) message["reasoning_content"] = reasoning;
    if (!calls.empty() && legacy_) message["function_call"] = calls[0]["function"];
    if (!calls.empty() && !legacy_) message["tool_calls"] = calls;
    return {{"index", index},
            {"message", message},
            {"logprobs", logprobs_ ? LogprobsJson(*model_.tokenizer, tokens) : Json()},
            {"finish_reason", FinishReasonText(reply.ending.end, legacy_)}};
  }

  std::string Chunk(size_t index, const Json& delta, const Json& reason,
                    const Json& logprobs = {}) const {
    Json json = Frame("chat.completion.chunk");
    Json choice = {{"index", index}, {"delta", delta}};
    if (!logprobs.is_null()) choice["logprobs"] = logprobs;
    choice["finish_reason"] = reason;
    json["choices"] = Json::array({choice});
    if (include_usage_) json["usage"] = nullptr;
    return Event(json);
  }

  const ServedModel& model_;
  const size_t num_choices_;
  const bool logprobs_;
  const bool legacy_;
  const bool include_usage_;
  const std::string id_;
  const int64_t created_;
};

}  // namespace

std::unique_ptr<ApiAnswer> NewChatAnswer(const ServedModel& model, const ApiRequest& request) {
  return std::make_unique<ChatAnswer>(model, request);
}

}  // namespace thimble::server
