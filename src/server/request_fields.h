#pragma once

#include <optional>
#include <string>
#include <vector>

#include "json/json_value.h"
#include "server/api.h"

namespace thimble::server {

/// The longest answer that a request may ask for.
inline constexpr size_t kMaxAnswer = size_t{1} << 31;

/// Throws the ApiError of status 400 that says what `field` was expected to be.
[[noreturn]] void Refuse(const std::string& field, const std::string& expected);

/// Fields of a request's body, checked. What is null counts as absent; ApiError of status 400 that
/// names the field where its type or range is wrong.
class RequestFields {
 public:
  explicit RequestFields(const JsonValue& body) : body_(body) {}

  const JsonValue* Find(const std::string& key) const { return body_.FindSet(key); }
  std::optional<double> Number(const std::string& key, double least, double most) const;
  std::optional<size_t> Count(const std::string& key, size_t least, size_t most) const;
  bool Boolean(const std::string& key, bool absent) const;
  std::string String(const std::string& key) const;
  /// A string, or an array of a few.
  std::vector<std::string> Stops(const std::string& key) const;

 private:
  const JsonValue& body_;
};

/// temperature, top_p, top_k, min_p, seed; others as the model serves them. Without a seed one is
/// drawn.
SamplingOptions ReadSampling(const RequestFields& fields, const ServedModel& model);

/// Sets thinking and effort from a level: none, minimal, off, disabled; low; medium and high; xhigh
/// and max.
void SetEffort(const std::string& level, const std::string& field, ChatRequest* request);

/// Sets the response format from {"type": "json_schema", "schema": ...}, json_object or text: where
/// newer APIs than chat's keep it, as the field `path`.
void ReadFormat(const JsonValue& format, const std::string& path, ChatRequest* chat);

/// What the APIs of chat share: encodes the conversation, bounds the answer by the context.
/// `max_tokens` absent: what the context has room for.
void FinishChatRequest(const ChatRequest& chat, std::optional<size_t> max_tokens,
                       const ServedModel& model, ApiRequest* request);
/// The same for a prompt of ids.
void FinishRequest(std::vector<TokenId> prompt, std::optional<size_t> max_tokens,
                   const ServedModel& model, ApiRequest* request);

/// A tool as OpenAI's chat has it, which is what the model was trained on: a function of `members`.
JsonValue FunctionTool(std::vector<JsonMember> members);

/// ApiError unless every tool is a function with a valid name of its own.
void CheckTools(const ChatRequest& chat);

}  // namespace thimble::server
