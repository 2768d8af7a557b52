#include "chat/reply_parser.h"

namespace thimble {
namespace {

const char* ClosingK3(ReplyChannel channel) {
  switch (channel) {
    case ReplyChannel::kReasoning:
      return "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>";
    case ReplyChannel::kContent:
      return "<|close|>response<|sep|>";
    case ReplyChannel::kToolCalls:
      return "<|close|>tools<|sep|>";
    case ReplyChannel::kNone:
      break;
  }
  return "";
}

}  // namespace

std::vector<TokenId> EndOfReply(const Tokenizer& tokenizer, ReplyChannel channel, bool closed) {
  std::vector<TokenId> ids;
  if (FindChatMarkup(tokenizer) == ChatMarkup::kKimiLinear) {
    tokenizer.EncodeMarkup("<|im_end|>", &ids);
    return ids;
  }
  if (!closed) {
    tokenizer.EncodeMarkup(ClosingK3(channel), &ids);
    tokenizer.EncodeMarkup("<|close|>message<|sep|>", &ids);
  }
  tokenizer.EncodeMarkup("<|end_of_msg|>", &ids);
  return ids;
}

std::unique_ptr<ReplyParser> NewReplyParser(ChatMarkup markup, const Tokenizer& tokenizer,
                                            const ReplyOptions& options, ReplyListener& listener) {
  return markup == ChatMarkup::kKimiK3 ? NewKimiK3Parser(tokenizer, options, listener)
                                       : NewKimiLinearParser(tokenizer, options, listener);
}

}  // namespace thimble
