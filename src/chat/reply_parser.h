#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/token_id.h"
#include "chat/prompt.h"
#include "text/tokenizer.h"

namespace thimble {

/// What an answer is made of, told as it is read. Texts are whole UTF-8 characters, never a part of
/// the markup.
class ReplyListener {
 public:
  virtual ~ReplyListener() = default;
  virtual void OnReasoning(std::string_view text) = 0;
  virtual void OnContent(std::string_view text) = 0;
  /// A call of the function `name` begins; calls are numbered 0, 1, ... as they come.
  virtual void OnToolCall(size_t index, const std::string& name) = 0;
  /// A piece of the latest call's arguments. All of them together are a JSON object.
  virtual void OnToolArguments(size_t index, std::string_view piece) = 0;
};

/// Where in an answer its latest token was.
enum class ReplyChannel : uint8_t { kNone, kReasoning, kContent, kToolCalls };

/// Reads an answer token by token. It goes by ids: markers spelled by ordinary tokens are text.
/// Deviations seen in the wild are read as they were meant: a thought that is not closed before the
/// answer begins, a message that closes before its answer, channels opened twice or in another
/// order, text outside of any. Nothing that the model writes makes it fail. One thread at a time.
class ReplyParser {
 public:
  virtual ~ReplyParser() = default;
  /// True once the message has ended; what follows is ignored.
  virtual bool Feed(TokenId id) = 0;
  /// The answer ended or was cut: gives out the text that was held back, drops an unfinished tag,
  /// and completes a call that broke off.
  virtual void Finish() = 0;
  virtual ReplyChannel channel() const = 0;
  virtual bool done() const = 0;
  virtual size_t num_tool_calls() const = 0;
};

/// The ids that end an answer which broke off in `channel`, so that the conversation can go on;
/// `closed`: only the end of the message itself is missing.
std::vector<TokenId> EndOfReply(const Tokenizer& tokenizer, ReplyChannel channel, bool closed);

struct ReplyOptions {
  bool thinking = true;  // the prompt ended with the beginning of a thought
  bool tools = true;     // calls are wanted; otherwise they are dropped
  // Functions that may be called: calls of others are dropped. Empty: any.
  std::vector<std::string> functions = {};
};

/// A parser for `markup`; borrows tokenizer and listener.
std::unique_ptr<ReplyParser> NewReplyParser(ChatMarkup markup, const Tokenizer& tokenizer,
                                            const ReplyOptions& options, ReplyListener& listener);

/// One for each markup; NewReplyParser chooses.
std::unique_ptr<ReplyParser> NewKimiK3Parser(const Tokenizer& tokenizer,
                                             const ReplyOptions& options, ReplyListener& listener);
std::unique_ptr<ReplyParser> NewKimiLinearParser(const Tokenizer& tokenizer,
                                                 const ReplyOptions& options,
                                                 ReplyListener& listener);

}  // namespace thimble
