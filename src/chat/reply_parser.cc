#include "chat/reply_parser.h"

namespace thimble {

std::unique_ptr<ReplyParser> NewReplyParser(ChatMarkup markup, const Tokenizer& tokenizer,
                                            const ReplyOptions& options, ReplyListener& listener) {
  return markup == ChatMarkup::kKimiK3 ? NewKimiK3Parser(tokenizer, options, listener)
                                       : NewKimiLinearParser(tokenizer, options, listener);
}

}  // namespace thimble
