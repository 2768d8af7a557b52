#include <algorithm>
#include <map>

#include "server/api.h"
#include "server/request_fields.h"
#include "server/sse.h"

// OpenAI's /v1/chat/completions.

namespace thimble::server {
namespace {

constexpr size_t kMaxTopLogprobs = 20;

// The level that a request asks for by any of the ways clients have; empty: none.
std::string FindEffort(const RequestFields& fields, std::string* field) {
  const auto text = [](const JsonValue* value) {
    return value != nullptr && value->is_string() ? value->text : std::string();
  };
  std::string level;
  if (const JsonValue* arguments = fields.Find("chat_template_kwargs")) {
    for (const char* key : {"thinking", "enable_thinking"}) {
      const JsonValue* value = arguments->FindSet(key);
      if (value != nullptr && value->is_boolean() && !value->boolean) return "off";
    }
    *field = "chat_template_kwargs.thinking_effort";
    level = text(arguments->FindSet("thinking_effort"));
  }
  if (fields.Find("reasoning_effort") != nullptr) {
    *field = "reasoning_effort";
    level = fields.String("reasoning_effort");
  }
  if (const JsonValue* thinking = fields.Find("thinking")) {
    if (thinking->is_boolean()) return thinking->boolean ? level : "off";
    if (text(thinking->FindSet("type")) == "disabled") return "off";
    const std::string effort = text(thinking->FindSet("effort"));
    if (!effort.empty()) {
      *field = "thinking.effort";
      level = effort;
    }
  }
  return level;
}

// The fields of the body that ReadChatRequest reads as they are.
JsonValue ChatFields(const JsonValue& body) {
  JsonValue fields;
  fields.kind = JsonValue::Kind::kObject;
  for (const char* key : {"messages", "tools", "tool_choice", "response_format"}) {
    if (const JsonValue* value = body.FindSet(key)) fields.members.push_back({key, *value});
  }
  return fields;
}

void CheckFormat(const RequestFields& fields) {
  const JsonValue* format = fields.Find("response_format");
  const JsonValue* schema = format == nullptr ? nullptr : format->FindSet("json_schema");
  if (schema == nullptr) return;
  const JsonValue* name = schema->FindSet("name");
  const JsonValue* inner = schema->FindSet("schema");
  if (name == nullptr || !name->is_string() || name->text.empty()) {
    Refuse("response_format.json_schema.name", "a name");
  }
  if (inner == nullptr || !inner->is_object()) {
    Refuse("response_format.json_schema.schema", "an object");
  }
}

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

ApiRequest ReadChatApi(const JsonValue& body, const ServedModel& model) {
  const RequestFields fields(body);
  fields.Count("n", 1, 1);
  CheckFormat(fields);
  ChatRequest chat = ReadChatRequest(ChatFields(body));
  chat.thinking = !model.effort.empty();
  chat.effort = model.effort;
  std::string field;
  const std::string level = FindEffort(fields, &field);
  if (!level.empty()) SetEffort(level, field, &chat);

  ApiRequest request;
  request.stream = fields.Boolean("stream", false);
  if (const JsonValue* options = fields.Find("stream_options")) {
    request.include_usage = RequestFields(*options).Boolean("include_usage", false);
  }
  request.stops = fields.Stops("stop");
  request.logprobs = fields.Boolean("logprobs", false);
  const auto top = fields.Count("top_logprobs", 0, kMaxTopLogprobs);
  if (request.logprobs) request.job.top_logprobs = top.value_or(0);
  request.job.sampling = ReadSampling(fields, model);
  auto most = fields.Count("max_tokens", 1, kMaxAnswer);
  if (const auto newer = fields.Count("max_completion_tokens", 1, kMaxAnswer)) most = newer;
  FinishChatRequest(chat, most, model, &request);
  return request;
}

std::unique_ptr<ApiAnswer> NewChatAnswer(const ServedModel& model, const ApiRequest& request) {
  return std::make_unique<ChatAnswer>(model, request);
}

}  // namespace thimble::server
