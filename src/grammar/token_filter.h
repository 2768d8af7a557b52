#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "chat/reply_parser.h"
#include "grammar/json_grammar.h"
#include "text/tokenizer.h"

namespace thimble {

/// Says which tokens may come next in an answer that must be JSON. Only the answer itself is bound,
/// not the thought before it, nor the markup around it. One thread at a time.
class TokenFilter {
 public:
  TokenFilter(const Tokenizer& tokenizer, ChatMarkup markup, bool thinking, JsonGrammar grammar);

  /// Whether `id` may come next.
  bool Allows(TokenId id) const;
  /// It came.
  void Accept(TokenId id);

 private:
  class Ignore;
  bool binds() const;

  const Tokenizer& tokenizer_;
  const JsonGrammar grammar_;
  std::unique_ptr<ReplyListener> ignore_;
  std::unique_ptr<ReplyParser> parser_;
  const TokenId end_;  // may follow a whole value
  JsonState state_;
  bool ended_ = false;
};

}  // namespace thimble
