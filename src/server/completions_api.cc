#include "server/api.h"
#include "server/request_fields.h"
#include "server/sse.h"

// OpenAI's older /v1/completions: a text, or ids, continued.

namespace thimble::server {
namespace {

constexpr size_t kDefaultAnswer = 16;

class CompletionsAnswer : public ApiAnswer {
 public:
  CompletionsAnswer(const ServedModel& model, const ApiRequest& request)
      : model_(model),
        include_usage_(request.include_usage),
        echo_(request.echo ? request.prompt_text : ""),
        id_(NewId("cmpl-")) {}

  std::string Begin() override { return echo_.empty() ? "" : Event(Frame(echo_, nullptr)); }
  std::string Write(const std::vector<ReplyPiece>& pieces) override {
    std::string text;
    for (const ReplyPiece& piece : pieces) text += piece.text;
    return text.empty() ? "" : Event(Frame(text, nullptr));
  }
  std::string End(ReplyEnd end, const Usage& usage) override {
    std::string text = Event(Frame("", Reason(end)));
    if (include_usage_) {
      Json json = Frame("", nullptr);
      json["choices"] = Json::array();
      json["usage"] = UsageJson(usage);
      text += Event(json);
    }
    return text + "data: [DONE]\n\n";
  }
  std::string Fail(const std::string& message) override {
    return "data: " + WriteApiError(Api::kCompletions, ApiError(500, message)) +
           "\n\ndata: [DONE]\n\n";
  }
  std::string KeepAlive(const std::string& note) override { return Comment("keepalive " + note); }
  std::string Whole(const std::vector<ReplyPiece>& pieces, ReplyEnd end,
                    const Usage& usage) override {
    std::string text = echo_;
    for (const ReplyPiece& piece : pieces) text += piece.text;
    Json json = Frame(text, Reason(end));
    json["usage"] = UsageJson(usage);
    return Dump(json);
  }

 private:
  static const char* Reason(ReplyEnd end) { return end == ReplyEnd::kLength ? "length" : "stop"; }
  static Json UsageJson(const Usage& usage) {
    return {{"prompt_tokens", usage.prompt_tokens},
            {"completion_tokens", usage.completion_tokens},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
            {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  }
  Json Frame(const std::string& text, const Json& reason) const {
    const Json choice = {
        {"index", 0}, {"text", text}, {"logprobs", nullptr}, {"finish_reason", reason}};
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", model_.created},
            {"model", model_.name},
            {"choices", Json::array({choice})}};
  }

  const ServedModel& model_;
  const bool include_usage_;
  const std::string echo_;
  const std::string id_;
};

std::vector<TokenId> ReadPrompt(const JsonValue* prompt, const ServedModel& model) {
  std::vector<TokenId> ids;
  // One prompt in an array is that prompt; several are n > 1 answers.
  if (prompt != nullptr && prompt->is_array() && prompt->items.size() == 1 &&
      !prompt->items[0].is_integer()) {
    return ReadPrompt(&prompt->items[0], model);
  }
  if (prompt != nullptr && prompt->is_string()) {
    model.tokenizer->Encode(prompt->text, &ids);
    return ids;
  }
  if (prompt == nullptr || !prompt->is_array()) {
    throw ApiError(400, "prompt: expected a string, or an array of token ids");
  }
  for (const JsonValue& id : prompt->items) {
    const double number = id.is_integer() ? id.AsDouble() : -1;
    if (!(number >= 0 && number < 4294967296.0)) {
      throw ApiError(400, "prompt: expected token ids; several prompts at once are not supported");
    }
    ids.push_back(static_cast<TokenId>(number));
  }
  return ids;
}

}  // namespace

ApiRequest ReadCompletionsApi(const JsonValue& body, const ServedModel& model) {
  const RequestFields fields(body);
  fields.Count("n", 1, 1);
  fields.Count("best_of", 1, 1);
  ApiRequest request;
  request.is_chat = false;
  request.stream = fields.Boolean("stream", false);
  if (const JsonValue* options = fields.Find("stream_options")) {
    request.include_usage = RequestFields(*options).Boolean("include_usage", false);
  }
  request.stops = fields.Stops("stop");
  request.job.sampling = ReadSampling(fields, model);
  request.echo = fields.Boolean("echo", false);
  const auto most = fields.Count("max_tokens", 1, kMaxAnswer);
  FinishRequest(ReadPrompt(fields.Find("prompt"), model), most.value_or(kDefaultAnswer), model,
                &request);
  if (request.echo) request.prompt_text = model.tokenizer->Decode(request.job.prompt);
  return request;
}

std::unique_ptr<ApiAnswer> NewCompletionsAnswer(const ServedModel& model,
                                                const ApiRequest& request) {
  return std::make_unique<CompletionsAnswer>(model, request);
}

}  // namespace thimble::server
