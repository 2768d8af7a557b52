#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/reply_parser.h"
#include "server/job.h"
#include "text/stop_matcher.h"
#include "text/utf8_stream.h"

namespace thimble::server {

/// A part of an answer that may go out.
struct ReplyPiece {
  // kPrompt is the prompt of a completion, said back with its probabilities.
  enum class Kind : uint8_t { kReasoning, kContent, kToolCall, kToolArguments, kPrompt };
  Kind kind = Kind::kContent;
  std::string text;                  // of a call: the function's name
  size_t index = 0;                  // of the call
  std::string id;                    // of the call
  std::vector<SampledToken> tokens;  // of content and prompt, where probabilities are wanted
};

/// Makes pieces from the tokens of an answer: reads the model's markup, finds stop strings in the
/// content, and gives out whole characters only. One thread at a time.
class ReplyReader : private ReplyListener {
 public:
  struct Options {
    std::optional<ChatMarkup> markup;  // absent: all is content
    ReplyOptions reply;
    std::vector<std::string> stops;
    bool keep_tokens = false;  // with the content
  };
  ReplyReader(const Tokenizer& tokenizer, Options options);

  /// Appends what `token` completes. True once nothing more can come.
  bool Feed(const SampledToken& token, std::vector<ReplyPiece>* pieces);
  /// The answer ended: appends what was held back.
  void Finish(std::vector<ReplyPiece>* pieces);

  size_t num_tokens() const { return num_tokens_; }
  size_t reasoning_tokens() const { return reasoning_tokens_; }
  size_t num_tool_calls() const { return parser_ == nullptr ? 0 : parser_->num_tool_calls(); }
  bool stopped() const { return stops_.stopped(); }
  const std::string& stop_string() const { return stops_.found(); }

 private:
  void OnReasoning(std::string_view text) override;
  void OnContent(std::string_view text) override;
  void OnToolCall(size_t index, const std::string& name) override;
  void OnToolArguments(size_t index, std::string_view piece) override;
  void AddContent(std::string text);

  const Tokenizer& tokenizer_;
  const Options options_;
  std::unique_ptr<ReplyParser> parser_;
  Utf8Stream utf8_;
  StopMatcher stops_;
  std::vector<ReplyPiece>* out_ = nullptr;  // during a call
  std::vector<SampledToken> tokens_;        // of content not given out yet
  size_t num_tokens_ = 0;
  size_t reasoning_tokens_ = 0;
};

}  // namespace thimble::server
