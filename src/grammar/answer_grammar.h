#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/token_id.h"
#include "chat/chat_request.h"
#include "chat/prompt.h"
#include "grammar/grammar.h"
#include "json/json_value.h"
#include "text/tokenizer.h"

namespace thimble {

/// What the text of an answer must be.
struct TextForm {
  enum class Kind : uint8_t {
    kFree,
    kJsonObject,  // any
    kSchema,      // JSON that fits `schema`
    kChoice,      // one of `choices`, as it stands
    kPattern,     // what the regular expression `pattern` matches from end to end
  };
  Kind kind = Kind::kFree;
  std::string field;  // of the request, for errors and notes
  JsonValue schema;
  std::vector<std::string> choices;
  std::string pattern;
};

/// The form that `response_format` asks for.
TextForm FormOf(const ChatRequest& request);

/// A grammar that is finished, and what of the request it does not bind: places in the request,
/// some with a reason.
struct AnswerGrammar {
  Grammar grammar;
  std::vector<std::string> unbound;
};

/// The text of a form and then one of the reserved tokens `ends`. Error(kUsage) that begins with
/// the field where the form is malformed, contradicts itself or is too large; Grammar and
/// SchemaCompiler say what is meant by these.
AnswerGrammar BindText(const TextForm& form, const Tokenizer& tokenizer,
                       std::span<const TokenId> ends);

/// The whole answer to a request in its markup, from its first token on: a thought, which is free,
/// then text, calls of tools or both, as far as the request allows them.
///
/// With a form the text has that form, or an answer that calls tools has none. Where a call is
/// required there is no text. Calls are of the request's tools, those of `callable_tools` where
/// these are named, and a single one without `parallel_tool_calls`. The arguments fit the tool's
/// schema where a call is required and for tools with "strict": true; otherwise they are well
/// formed.
///
/// Absent where the request binds nothing. Errors as of BindText, also for the tools' schemas; one
/// that is too large is left unbound.
std::optional<AnswerGrammar> BindAnswer(const ChatRequest& request, const TextForm& form,
                                        ChatMarkup markup, const Tokenizer& tokenizer);

}  // namespace thimble
