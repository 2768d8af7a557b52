#include "server/model_endpoints.h"

#include <fmt/format.h>

#include "base/error.h"
#include "server/sse.h"

namespace thimble::server {
namespace {

Json ModelJson(const ServedModel& model) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "thimble"},
          {"max_model_len", model.context},
          {"context_length", model.context},
          {"meta", {{"n_ctx", model.context}}}};
}

JsonValue ParseTokenizerBody(const std::string& body) {
  try {
    return ParseJson(body);
  } catch (const Error& error) {
    throw ApiError(400, fmt::format("the body is {}", error.what()));
  }
}

}  // namespace

std::string ListModels(const ServedModel& model) {
  return Dump({{"object", "list"}, {"data", Json::array({ModelJson(model)})}});
}

std::string DescribeModel(const ServedModel& model, std::string_view name) {
  if (name != model.name) {
    throw ApiError(404, fmt::format("there is no model {}, only {}", name, model.name),
                   "model_not_found");
  }
  return Dump(ModelJson(model));
}

std::string Tokenize(const ServedModel& model, const std::string& text) {
  const JsonValue body = ParseTokenizerBody(text);
  const JsonValue* content = body.FindSet("content");
  if (content == nullptr) content = body.FindSet("prompt");
  if (content == nullptr || !content->is_string()) {
    throw ApiError(400, "content: expected a string");
  }
  const JsonValue* markup = body.FindSet("parse_special");
  std::vector<TokenId> ids;
  if (markup != nullptr && markup->boolean) {
    model.tokenizer->EncodeMarkup(content->text, &ids);
  } else {
    model.tokenizer->Encode(content->text, &ids);
  }
  return Dump({{"tokens", ids}, {"count", ids.size()}});
}

std::string Detokenize(const ServedModel& model, const std::string& text) {
  const JsonValue body = ParseTokenizerBody(text);
  const JsonValue* tokens = body.FindSet("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    throw ApiError(400, "tokens: expected an array of ids");
  }
  std::vector<TokenId> ids;
  for (const JsonValue& token : tokens->items) {
    const double id = token.is_integer() ? token.AsDouble() : -1;
    if (!(id >= 0 && id < model.tokenizer->vocab_size())) {
      throw ApiError(400,
                     fmt::format("tokens: expected ids below {}", model.tokenizer->vocab_size()));
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  return Dump({{"content", model.tokenizer->Decode(ids)}});
}

std::string WriteMetrics(const std::vector<std::pair<std::string, double>>& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    const bool is_sum = name.ends_with("_total");
    text +=
        fmt::format("# TYPE {} {}\n{} {}\n", name, is_sum ? "counter" : "gauge", name, Dump(value));
  }
  return text;
}

}  // namespace thimble::server
