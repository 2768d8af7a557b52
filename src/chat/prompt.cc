#include "chat/prompt.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace thimble {
namespace {

constexpr size_t kNoCall = SIZE_MAX;

// The place of the call that `result` answers; of calls with the same id, the first.
size_t FindCall(const ChatMessage& result, const std::vector<ToolCall>& calls) {
  if (result.tool_call_id.empty()) return kNoCall;
  const auto found = std::ranges::find(calls, result.tool_call_id, &ToolCall::id);
  return found == calls.end() ? kNoCall : static_cast<size_t>(found - calls.begin());
}

void SortRun(const std::vector<ToolCall>& calls, std::span<ChatMessage> run) {
  const auto place = [&](const ChatMessage& result) { return FindCall(result, calls); };
  const bool all_known =
      std::ranges::all_of(run, [&](const ChatMessage& result) { return place(result) != kNoCall; });
  if (!all_known) return;
  std::ranges::stable_sort(run, {}, place);
  for (ChatMessage& result : run) result.tool = calls[place(result)].name;
}

}  // namespace

ChatMarkup FindChatMarkup(const Tokenizer& tokenizer) {
  if (tokenizer.FindSpecial("<|open|>") && tokenizer.FindSpecial("<|end_of_msg|>")) {
    return ChatMarkup::kKimiK3;
  }
  if (tokenizer.FindSpecial("<|im_user|>") && tokenizer.FindSpecial("<|im_middle|>")) {
    return ChatMarkup::kKimiLinear;
  }
  throw Error(ErrorCode::kUsage,
              "this model's special tokens are those of no chat format that Thimble knows, so it "
              "can only continue text; where tokenizer_config.json is missing, download it");
}

bool AnswersInThought(ChatMarkup markup, const ChatRequest& request) {
  if (markup != ChatMarkup::kKimiK3 || !request.thinking) return false;
  return !request.continue_last || TextOf(request.messages.back().content).empty();
}

RenderedPrompt RenderChat(ChatMarkup markup, const ChatRequest& request) {
  if (request.continue_last && !EndsWithAnswer(request)) {
    throw Error(ErrorCode::kUsage,
                "only an assistant message at the end, with a text and without tool calls, can be "
                "continued");
  }
  return markup == ChatMarkup::kKimiK3 ? RenderKimiK3(request) : RenderKimiLinear(request);
}

EncodedPrompt EncodePrompt(const Tokenizer& tokenizer, const RenderedPrompt& prompt) {
  EncodedPrompt encoded;
  for (size_t i = 0; i < prompt.segments.size(); ++i) {
    if (i == prompt.history_segments) encoded.history_length = encoded.ids.size();
    const Segment& segment = prompt.segments[i];
    if (segment.markup) {
      tokenizer.EncodeMarkup(segment.text, &encoded.ids);
    } else {
      tokenizer.Encode(segment.text, &encoded.ids);
    }
  }
  if (prompt.history_segments == prompt.segments.size()) {
    encoded.history_length = encoded.ids.size();
  }
  return encoded;
}

EncodedPrompt EncodeChat(const Tokenizer& tokenizer, const ChatRequest& request) {
  return EncodePrompt(tokenizer, RenderChat(FindChatMarkup(tokenizer), request));
}

EncodedPrompt EncodeNextTurn(const Tokenizer& tokenizer, const ChatRequest& request,
                             const std::string& user) {
  const ChatMarkup markup = FindChatMarkup(tokenizer);
  ChatRequest next = request;
  next.add_generation_prompt = false;
  const size_t num_before = RenderChat(markup, next).segments.size();
  ChatMessage message;
  message.role = ChatRole::kUser;
  message.content = {{user, std::nullopt}};
  next.messages.push_back(message);
  next.add_generation_prompt = true;
  RenderedPrompt prompt = RenderChat(markup, next);
  prompt.segments.erase(prompt.segments.begin(),
                        prompt.segments.begin() + static_cast<ptrdiff_t>(num_before));
  prompt.history_segments -= num_before;
  return EncodePrompt(tokenizer, prompt);
}

std::vector<ChatMessage> SortToolResults(std::vector<ChatMessage> messages) {
  std::vector<ToolCall> calls;
  for (auto next = messages.begin(); next != messages.end();) {
    if (next->role == ChatRole::kAssistant) calls = next->tool_calls;
    if (next->role != ChatRole::kTool) {
      ++next;
      continue;
    }
    const auto end = std::find_if(next, messages.end(), [](const ChatMessage& message) {
      return message.role != ChatRole::kTool;
    });
    SortRun(calls, {next, end});
    next = end;
  }
  return messages;
}

}  // namespace thimble
