#include <fmt/format.h>

#include "server/api.h"
#include "server/field_policy.h"
#include "server/request_fields.h"

// OpenAI's older /v1/completions: texts, or ids, continued.

namespace thimble::server {
namespace {

constexpr size_t kDefaultAnswer = 16;
constexpr size_t kMaxLogprobs = 20;

using Ids = std::vector<TokenId>;

Ids ReadIds(const JsonValue& prompt, const std::string& path, const ServedModel& model) {
  Ids ids;
  if (prompt.is_string()) {
    model.tokenizer->Encode(prompt.text, &ids);
    return ids;
  }
  for (const JsonValue& id : prompt.items) {
    const double number = id.is_integer() ? id.AsDouble() : -1;
    if (!(number >= 0 && number < static_cast<double>(model.tokenizer->vocab_size()))) {
      Refuse(path, fmt::format("token ids below {}", model.tokenizer->vocab_size()));
    }
    ids.push_back(static_cast<TokenId>(number));
  }
  return ids;
}

// A text, ids, or an array of either.
std::vector<Ids> ReadPrompts(const JsonValue* prompt, const ServedModel& model) {
  if (prompt == nullptr || !(prompt->is_string() || prompt->is_array())) {
    Refuse("prompt", "a string, an array of token ids, or an array of either");
  }
  if (prompt->is_string() || prompt->items.empty() || prompt->items[0].is_number()) {
    return {ReadIds(*prompt, "prompt", model)};
  }
  if (prompt->items.size() > kMaxPrompts) {
    Refuse("prompt", fmt::format("at most {} prompts", kMaxPrompts));
  }
  std::vector<Ids> prompts;
  for (size_t i = 0; i < prompt->items.size(); ++i) {
    const JsonValue& item = prompt->items[i];
    const std::string path = fmt::format("prompt[{}]", i);
    if (!item.is_string() && !item.is_array()) Refuse(path, "a string or an array of token ids");
    prompts.push_back(ReadIds(item, path, model));
  }
  return prompts;
}

void ReadProbabilities(const RequestFields& fields, ApiRequest* request) {
  request->echo = fields.Boolean("echo", false);
  const auto logprobs = fields.Count("logprobs", 0, kMaxLogprobs);
  if (!logprobs) return;
  request->logprobs = true;
  request->job.top_logprobs = logprobs;
  if (request->echo) request->job.prompt_logprobs = logprobs;
}

}  // namespace

ApiRequest ReadCompletionsApi(const JsonValue& body, const ServedModel& model) {
  const RequestFields fields(body);
  ApiRequest request;
  request.is_chat = false;
  ChatRequest notes;  // of which only these are used
  CheckFields(Api::kCompletions, body, &notes);
  request.notes = notes.notes;
  request.num_choices = fields.Count("n", 1, kMaxChoices).value_or(1);
  const auto best_of = fields.Count("best_of", 1, kMaxChoices);
  if (best_of && *best_of != request.num_choices) {
    Refuse("best_of", "the same number as n: answers are not ranked");
  }
  if (!fields.String("suffix").empty()) {
    Refuse("suffix", "none: the model cannot fill in a text before a given end");
  }
  if (const JsonValue* options = fields.Object("stream_options")) {
    request.include_usage = RequestFields(*options).Boolean("include_usage", false);
  }
  ReadGeneration(fields, model, &request);
  ReadProbabilities(fields, &request);
  const char* limit = fields.Find("max_tokens") != nullptr ? "max_tokens" : "n_predict";
  const auto most = fields.Find(limit) == nullptr ? kDefaultAnswer : fields.Limit(limit, 0);
  std::vector<Ids> prompts = ReadPrompts(fields.Find("prompt"), model);
  // Each is checked as if it were the only one; the first stays in `job`.
  for (size_t i = prompts.size(); i-- > 0;) {
    FinishRequest(std::move(prompts[i]), most, model, &request);
    if (i == 0) break;
    request.more_prompts.insert(request.more_prompts.begin(),
                                {std::move(request.job.prompt), request.job.max_tokens});
  }
  if (fields.Boolean("ignore_eos", false)) request.job.stop_ids.clear();
  return request;
}

}  // namespace thimble::server
