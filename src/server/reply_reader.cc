#include "server/reply_reader.h"

#include <utility>

#include "server/api.h"

namespace thimble::server {

ReplyReader::ReplyReader(const Tokenizer& tokenizer, Options options)
    : tokenizer_(tokenizer), options_(std::move(options)), stops_(options_.stops) {
  if (options_.markup) {
    parser_ = NewReplyParser(*options_.markup, tokenizer, options_.reply, *this);
  }
}

bool ReplyReader::Feed(const SampledToken& token, std::vector<ReplyPiece>* pieces) {
  if (stops_.stopped()) return true;
  out_ = pieces;
  ++num_tokens_;
  const bool is_text = !tokenizer_.IsReserved(token.id);
  if (parser_ == nullptr) {
    // The end of the text as well: whoever counts tokens finds all of them.
    if (options_.keep_tokens) tokens_.push_back(token);
    std::string text;
    if (is_text) {
      utf8_.Feed(tokenizer_.TokenBytes(token.id), &text);
    } else {
      utf8_.Flush(&text);
    }
    OnContent(text);
    return stops_.stopped();
  }
  const ReplyChannel channel = parser_->channel();
  if (channel == ReplyChannel::kReasoning) ++reasoning_tokens_;
  if (channel == ReplyChannel::kContent && options_.keep_tokens && is_text) {
    tokens_.push_back(token);
  }
  return parser_->Feed(token.id) || stops_.stopped();
}

void ReplyReader::Finish(std::vector<ReplyPiece>* pieces) {
  out_ = pieces;
  if (parser_ != nullptr) {
    parser_->Finish();
  } else {
    std::string text;
    utf8_.Flush(&text);
    OnContent(text);
  }
  std::string held;
  if (!stops_.stopped()) stops_.Flush(&held);
  AddContent(std::move(held));
  if (parser_ != nullptr || tokens_.empty()) return;
  out_->push_back({ReplyPiece::Kind::kContent, {}, 0, {}, std::exchange(tokens_, {})});
}

void ReplyReader::OnReasoning(std::string_view text) {
  out_->push_back({ReplyPiece::Kind::kReasoning, std::string(text), 0, {}, {}});
}

void ReplyReader::OnContent(std::string_view text) {
  if (stops_.stopped()) return;
  std::string shown;
  stops_.Feed(text, &shown);
  AddContent(std::move(shown));
}

void ReplyReader::AddContent(std::string text) {
  if (text.empty()) return;
  out_->push_back({ReplyPiece::Kind::kContent, std::move(text), 0, {}, std::exchange(tokens_, {})});
}

void ReplyReader::OnToolCall(size_t index, const std::string& name) {
  out_->push_back({ReplyPiece::Kind::kToolCall, name, index, NewId("call_"), {}});
}

void ReplyReader::OnToolArguments(size_t index, std::string_view piece) {
  out_->push_back({ReplyPiece::Kind::kToolArguments, std::string(piece), index, {}, {}});
}

}  // namespace thimble::server
