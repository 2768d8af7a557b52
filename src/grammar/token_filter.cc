#include "grammar/token_filter.h"

#include <utility>

#include "base/error.h"

namespace thimble {

class TokenFilter::Ignore : public ReplyListener {
 public:
  void OnReasoning(std::string_view) override {}
  void OnContent(std::string_view) override {}
  void OnToolCall(size_t, const std::string&) override {}
  void OnToolArguments(size_t, std::string_view) override {}
};

TokenFilter::TokenFilter(const Tokenizer& tokenizer, ChatMarkup markup, bool thinking,
                         JsonGrammar grammar)
    : tokenizer_(tokenizer),
      grammar_(std::move(grammar)),
      ignore_(std::make_unique<Ignore>()),
      parser_(NewReplyParser(markup, tokenizer, {thinking, true}, *ignore_)),
      end_([&] {
        const auto id =
            tokenizer.FindSpecial(markup == ChatMarkup::kKimiK3 ? "<|close|>" : "<|im_end|>");
        THIMBLE_CHECK(id.has_value());
        return *id;
      }()),
      state_(grammar_) {}

bool TokenFilter::binds() const { return !ended_ && parser_->channel() == ReplyChannel::kContent; }

bool TokenFilter::Allows(TokenId id) const {
  if (!binds()) return true;
  if (id == end_) return state_.complete();
  if (tokenizer_.IsReserved(id)) return false;
  JsonState next = state_;
  return next.Feed(tokenizer_.TokenBytes(id));
}

void TokenFilter::Accept(TokenId id) {
  if (binds()) {
    if (id == end_) {
      ended_ = true;
    } else {
      state_.Feed(tokenizer_.TokenBytes(id));
    }
  }
  parser_->Feed(id);
}

}  // namespace thimble
