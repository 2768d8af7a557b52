/// Any bytes as an answer's ids: two of the top values of a byte stand for the markers, so that
/// tags form easily. The parser never fails, gives only valid UTF-8, spells no marker, numbers
/// calls in turn, and completes every call's arguments to JSON unless the model spelled it itself.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "chat/reply_parser.h"
#include "chat_tokenizers.h"
#include "json/json_value.h"
#include "text/utf8.h"

namespace {

using namespace thimble;

struct Checker : ReplyListener {
  static void CheckText(std::string_view text) {
    THIMBLE_CHECK(!text.empty() && ValidUtf8Prefix(text) == text.size());
  }
  void OnReasoning(std::string_view text) override { CheckText(text); }
  void OnContent(std::string_view text) override { CheckText(text); }
  void OnToolCall(size_t index, const std::string& name) override {
    THIMBLE_CHECK(index == arguments.size() && !name.empty());
    CheckText(name);
    arguments.emplace_back();
  }
  void OnToolArguments(size_t index, std::string_view piece) override {
    THIMBLE_CHECK(index + 1 == arguments.size());
    CheckText(piece);
    arguments.back() += piece;
  }
  std::vector<std::string> arguments;
};

// Each byte is its token, but for the last of them, which UTF-8 never holds: they are special ones.
TokenId IdOf(uint8_t byte, const Tokenizer& tokenizer) {
  constexpr uint8_t kFirstSpecial = 0xf5;
  return byte < kFirstSpecial ? byte : tokenizer.num_ranks() + (byte - kFirstSpecial);
}

void Check(ChatMarkup markup, const ReplyOptions& options, std::string_view bytes) {
  const Tokenizer& tokenizer = fuzz::ChatTokenizer(markup);
  Checker checker;
  const auto parser = NewReplyParser(markup, tokenizer, options, checker);
  bool done = false;
  for (const char c : bytes) {
    const bool now = parser->Feed(IdOf(static_cast<uint8_t>(c), tokenizer));
    THIMBLE_CHECK(now || !done);
    done = now;
  }
  parser->Finish();
  THIMBLE_CHECK(parser->done() && parser->num_tool_calls() == checker.arguments.size());
  THIMBLE_CHECK(options.tools || checker.arguments.empty());
  for (const std::string& arguments : checker.arguments) {
    THIMBLE_CHECK(IsJson(arguments) && ParseJson(arguments).is_object());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const ReplyOptions options = {(data[0] & 1) != 0, (data[0] & 2) != 0};
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  Check(ChatMarkup::kKimiK3, options, bytes);
  Check(ChatMarkup::kKimiLinear, options, bytes);
  return 0;
}
