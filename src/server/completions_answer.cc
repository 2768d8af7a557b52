#include "server/api.h"
#include "server/sse.h"

// Answers of OpenAI's older /v1/completions.

namespace thimble::server {
namespace {

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

}  // namespace

std::unique_ptr<ApiAnswer> NewCompletionsAnswer(const ServedModel& model,
                                                const ApiRequest& request) {
  return std::make_unique<CompletionsAnswer>(model, request);
}

}  // namespace thimble::server
