#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json/json_fields.h"
#include "server/api.h"

namespace thimble::server {

/// The longest answer that a request may ask for.
inline constexpr size_t kMaxAnswer = size_t{1} << 31;

/// Throws the ApiError of status 400 that says what `field` was expected to be.
[[noreturn]] void Refuse(const std::string& field, const std::string& expected);

/// The integer that a number is, also one written as 8.0; nothing for any other value.
std::optional<double> FindInteger(const JsonValue& value);

/// The fields of a request's body, all of them optional. Error(kUsage), which the client gets as
/// status 400, names the field where its type or range is wrong.
class RequestFields : private JsonFields {
 public:
  explicit RequestFields(const JsonValue& body) : JsonFields(body, RequestOrigin()) {}

  using JsonFields::Find;
  std::optional<double> Number(std::string_view key, double least, double most) const {
    return MaybeNumberIn(key, least, most);
  }
  /// An integer, also written as 8.0.
  std::optional<size_t> Count(std::string_view key, size_t least, size_t most) const {
    return MaybeInteger(key, least, most);
  }
  /// The same without an upper bound; -1, which means no limit, counts as absent.
  std::optional<size_t> Limit(const std::string& key, size_t least) const;
  bool Boolean(std::string_view key, bool absent) const { return MaybeBool(key).value_or(absent); }
  std::string String(std::string_view key) const { return MaybeText(key).value_or(""); }
  /// An object; null where it is absent.
  const JsonValue* Object(const std::string& key) const;
  /// A string, or an array of a few.
  std::vector<std::string> Stops(const std::string& key) const;
};

/// temperature, top_p, top_k, min_p, the penalties, logit_bias, seed; others as the model serves
/// them. Without a seed one is drawn.
SamplingOptions ReadSampling(const RequestFields& fields, const ServedModel& model);

/// stream, stop, stop_token_ids, sampling and include_reasoning: fields of every API of chat.
void ReadGeneration(const RequestFields& fields, const ServedModel& model, ApiRequest* request);

/// Notes on fields of every API of chat that are accepted and have no effect.
void NoteIneffective(const RequestFields& fields, ChatRequest* chat);

/// Sets the response format from {"type": "json_schema", "schema": ...}, json_object or text: where
/// newer APIs than chat's keep it, as the field `path`.
void ReadFormat(const JsonValue& format, const std::string& path, ChatRequest* chat);

/// Removes lines such as "x-anthropic-billing-header: ...; cch=..." from the beginning of a system
/// text, with a note. Claude Code writes them for Anthropic's accounts; they differ from request to
/// request, so that no prompt would go on from the one before.
void DropAttribution(std::string* text, ChatRequest* chat);

/// Sets continue_last where the conversation ends with an answer; an empty one is left out.
void ContinueLastAnswer(ChatRequest* chat);

/// What the APIs of chat share: checks and encodes the conversation, bounds the answer by the
/// context. `max_tokens` absent: what the context has room for.
void FinishChatRequest(ChatRequest chat, std::optional<size_t> max_tokens, const ServedModel& model,
                       ApiRequest* request);
/// The same for a prompt of ids.
void FinishRequest(std::vector<TokenId> prompt, std::optional<size_t> max_tokens,
                   const ServedModel& model, ApiRequest* request);

}  // namespace thimble::server
