#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/token_id.h"
#include "chat/chat_request.h"
#include "text/tokenizer.h"

namespace thimble {

/// How a model wants a conversation spelled.
enum class ChatMarkup : uint8_t { kKimiK3, kKimiLinear };

/// The markup that a tokenizer's special tokens are for. Error(kUsage) where they are for none: the
/// model then only continues text.
ChatMarkup FindChatMarkup(const Tokenizer& tokenizer);

/// A stretch of a prompt that is encoded by itself: markup, in which spellings of special tokens
/// become these tokens, or text, in which they mean nothing. Whatever a user, a tool or a schema
/// wrote is text, so it cannot forge structure.
struct Segment {
  std::string text;
  bool markup = false;
  bool operator==(const Segment&) const = default;
};

/// A prompt as segments; none is empty.
struct RenderedPrompt {
  std::vector<Segment> segments;
  size_t history_segments = 0;  // of them, up to the end of the last message of the conversation:
                                // what follows it (tool choice, format) is not said again later;
                                // without a message that is to be continued
};

/// Spells a request. Error(kUsage) where the result of a tool belongs to no call and names none,
/// and where continue_last is set without an answer at the end.
RenderedPrompt RenderChat(ChatMarkup markup, const ChatRequest& request);

/// Whether the prompt ends inside a thought, as opposed to the answer's content.
bool AnswersInThought(ChatMarkup markup, const ChatRequest& request);

/// One template each; RenderChat chooses.
RenderedPrompt RenderKimiK3(const ChatRequest& request);
RenderedPrompt RenderKimiLinear(const ChatRequest& request);

/// A prompt as token ids.
struct EncodedPrompt {
  std::vector<TokenId> ids;
  size_t history_length = 0;  // ids of history_segments
};
EncodedPrompt EncodePrompt(const Tokenizer& tokenizer, const RenderedPrompt& prompt);

/// RenderChat and EncodePrompt in one.
EncodedPrompt EncodeChat(const Tokenizer& tokenizer, const ChatRequest& request);

/// What follows in the prompt where only the user's next message, and the beginning of an answer,
/// are added to a conversation that begins as `request` says.
EncodedPrompt EncodeNextTurn(const Tokenizer& tokenizer, const ChatRequest& request,
                             const std::string& user);

/// Collects segments.
class SegmentWriter {
 public:
  void Markup(std::string_view text) { Add(text, true); }
  void Text(std::string_view text) { Add(text, false); }
  size_t size() const { return segments_.size(); }
  std::vector<Segment> Take() { return std::move(segments_); }

 private:
  void Add(std::string_view text, bool markup) {
    if (!text.empty()) segments_.push_back({std::string(text), markup});
  }
  std::vector<Segment> segments_;
};

/// Orders each run of tool results by the calls that they answer, and names their tools, where
/// every result of the run names a call of the latest assistant message before it. Other runs stay
/// as they are.
std::vector<ChatMessage> SortToolResults(std::vector<ChatMessage> messages);

}  // namespace thimble
