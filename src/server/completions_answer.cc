#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/api.h"
#include "server/sse.h"
#include "text/utf8.h"
#include "text/utf8_stream.h"

// Answers of OpenAI's older /v1/completions.

namespace thimble::server {
namespace {

const char* Reason(ReplyEnd end) { return end == ReplyEnd::kLength ? "length" : "stop"; }

Json CompletionUsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

// A token as a key: its text, or its bytes where they are a part of a character.
std::string Spelling(std::string_view bytes) {
  if (ValidUtf8Prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

size_t CountCharacters(std::string_view bytes) {
  return static_cast<size_t>(std::ranges::count_if(
      bytes, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

class CompletionsAnswer : public ApiAnswer {
 public:
  CompletionsAnswer(const ServedModel& model, const ApiRequest& request)
      : model_(model),
        include_usage_(request.include_usage),
        logprobs_(request.logprobs),
        choices_per_prompt_(request.num_choices),
        id_(NewId("cmpl-")),
        created_(UnixTime()),
        choices_(request.num_choices * (1 + request.more_prompts.size())) {
    // With probabilities the prompt is said back as its tokens come.
    if (!request.echo || request.job.prompt_logprobs) return;
    echoes_.push_back(model.tokenizer->Decode(request.job.prompt));
    for (const ApiRequest::Prompt& prompt : request.more_prompts) {
      echoes_.push_back(model.tokenizer->Decode(prompt.ids));
    }
  }

  std::string Begin(const Usage&) override {
    std::string text;
    for (size_t i = 0; i < choices_.size() && !echoes_.empty(); ++i) {
      text += Chunk(i, Echo(i), {}, nullptr);
    }
    return text;
  }
  std::string Write(size_t choice, const std::vector<ReplyPiece>& pieces) override {
    std::string text;
    for (const ReplyPiece& piece : pieces) {
      text += Chunk(choice, TextOf(choice, piece), piece.tokens, nullptr);
    }
    return text;
  }
  std::string EndChoice(size_t choice, const ReplyEnding& ending) override {
    return Chunk(choice, "", {}, Reason(ending.end));
  }
  std::string End(const Usage& usage) override {
    std::string text;
    if (include_usage_) {
      Json json = Frame();
      json["choices"] = Json::array();
      json["usage"] = CompletionUsageJson(usage);
      text = Event(json);
    }
    return text + "data: [DONE]\n\n";
  }
  std::string Fail(const std::string& message) override {
    return "data: " + WriteApiError(Api::kCompletions, ApiError(500, message)) +
           "\n\ndata: [DONE]\n\n";
  }
  std::string KeepAlive(const std::string& note) override { return Comment("keepalive " + note); }

  std::string Whole(const std::vector<Reply>& replies, const Usage& usage) override {
    Json json = Frame();
    json["choices"] = Json::array();
    for (size_t i = 0; i < replies.size(); ++i) {
      std::string text = Echo(i);
      std::vector<SampledToken> tokens;
      for (const ReplyPiece& piece : replies[i].pieces) {
        text += TextOf(i, piece);
        tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
      }
      json["choices"].push_back(Choice(i, text, tokens, Reason(replies[i].ending.end)));
    }
    json["usage"] = CompletionUsageJson(usage);
    return Dump(json);
  }

 private:
  struct ChoiceState {
    Utf8Stream prompt;  // said back token by token
    size_t num_characters = 0;
  };

  std::string Echo(size_t choice) const {
    return echoes_.empty() ? std::string() : echoes_[choice / choices_per_prompt_];
  }
  std::string TextOf(size_t choice, const ReplyPiece& piece) {
    std::string text;
    if (piece.kind != ReplyPiece::Kind::kPrompt) {
      choices_[choice].prompt.Flush(&text);
      return text + piece.text;
    }
    for (const SampledToken& token : piece.tokens) {
      choices_[choice].prompt.Feed(model_.tokenizer->TokenBytes(token.id), &text);
    }
    return text;
  }

  Json LogprobsJson(size_t choice, const std::vector<SampledToken>& tokens) {
    ChoiceState& state = choices_[choice];
    Json json = {{"tokens", Json::array()},
                 {"token_logprobs", Json::array()},
                 {"top_logprobs", Json::array()},
                 {"text_offset", Json::array()}};
    for (const SampledToken& token : tokens) {
      const std::string_view bytes = model_.tokenizer->TokenBytes(token.id);
      json["tokens"].push_back(Spelling(bytes));
      json["token_logprobs"].push_back(token.has_logprob ? Json(token.logprob) : Json());
      Json top;
      if (token.has_logprob) {
        top = Json::object();
        for (const TokenLogprob& other : token.top) {
          top.emplace(Spelling(model_.tokenizer->TokenBytes(other.id)), other.logprob);
        }
        // The token itself is always among them.
        top.emplace(Spelling(bytes), token.logprob);
      }
      json["top_logprobs"].push_back(top);
      json["text_offset"].push_back(state.num_characters);
      state.num_characters += CountCharacters(bytes);
    }
    return json;
  }

  Json Choice(size_t index, const std::string& text, const std::vector<SampledToken>& tokens,
              const Json& reason) {
    return {{"index", index},
            {"text", text},
            {"logprobs", logprobs_ ? LogprobsJson(index, tokens) : Json()},
            {"finish_reason", reason}};
  }
  std::string Chunk(size_t index, const std::string& text, const std::vector<SampledToken>& tokens,
                    const Json& reason) {
    Json json = Frame();
    json["choices"] = Json::array({Choice(index, text, tokens, reason)});
    if (include_usage_) json["usage"] = nullptr;
    return Event(json);
  }
  Json Frame() const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", model_.name},
            {"system_fingerprint", model_.fingerprint.empty() ? Json() : Json(model_.fingerprint)}};
  }

  const ServedModel& model_;
  const bool include_usage_;
  const bool logprobs_;
  const size_t choices_per_prompt_;
  const std::string id_;
  const int64_t created_;
  std::vector<ChoiceState> choices_;
  std::vector<std::string> echoes_;  // by prompt; none where they are not wanted
};

}  // namespace

std::unique_ptr<ApiAnswer> NewCompletionsAnswer(const ServedModel& model,
                                                const ApiRequest& request) {
  return std::make_unique<CompletionsAnswer>(model, request);
}

}  // namespace thimble::server
