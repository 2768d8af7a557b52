/// Any bytes as the JSON of a chat request: refused with an Error, or rendered such that only
/// markup segments give reserved ids, the ids decode to the segments' text, and the history is a
/// prefix. Every argument and message of it is untrusted.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "chat/prompt.h"
#include "chat_tokenizers.h"

namespace {

using namespace thimble;

void Check(ChatMarkup markup, const Tokenizer& tokenizer, const ChatRequest& request) {
  const RenderedPrompt prompt = RenderChat(markup, request);
  std::string text;
  size_t num_reserved = 0;
  for (const Segment& segment : prompt.segments) {
    THIMBLE_CHECK(!segment.text.empty());
    text += segment.text;
    if (!segment.markup) continue;
    num_reserved += static_cast<size_t>(std::ranges::count(segment.text, '<'));
  }
  const EncodedPrompt encoded = EncodePrompt(tokenizer, prompt);
  THIMBLE_CHECK(tokenizer.Decode(encoded.ids) == text);
  THIMBLE_CHECK(encoded.history_length <= encoded.ids.size());
  THIMBLE_CHECK(static_cast<size_t>(std::ranges::count_if(encoded.ids, [&](TokenId id) {
                  return tokenizer.IsReserved(id);
                })) == num_reserved);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<ImageSize> images = {{640, 480}, {1, 1}};
  for (const ChatMarkup markup : {ChatMarkup::kKimiK3, ChatMarkup::kKimiLinear}) {
    try {
      Check(markup, fuzz::ChatTokenizer(markup), ReadChatRequest(ParseJson(text), images));
    } catch (const Error& error) {
      THIMBLE_CHECK(error.code() == ErrorCode::kUsage);
    }
  }
  return 0;
}
