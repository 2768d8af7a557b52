#include "server/api.h"
#include "server/request_fields.h"
#include "server/sse.h"

// OpenAI's older /v1/completions: a text, or ids, continued.

namespace thimble::server {
namespace {

constexpr size_t kDefaultAnswer = 16;

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

}  // namespace thimble::server
