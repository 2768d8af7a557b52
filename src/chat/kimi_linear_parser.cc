#include <algorithm>

#include "chat/reply_parser.h"
#include "chat/tool_call_writer.h"
#include "text/utf8_stream.h"

namespace thimble {
namespace {

// "functions.NAME:3" -> "NAME".
std::string FunctionName(std::string_view call) {
  const auto trim = [](std::string_view text) {
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return std::string_view();
    return text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
  };
  std::string_view name = trim(call);
  if (name.starts_with("functions.")) name.remove_prefix(10);
  const size_t colon = name.rfind(':');
  const bool numbered = colon != std::string_view::npos && colon + 1 < name.size() &&
                        name.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
  return std::string(numbered ? name.substr(0, colon) : name);
}

class KimiLinearParser : public ReplyParser {
 public:
  KimiLinearParser(const Tokenizer& tokenizer, const ReplyOptions& options, ReplyListener& listener)
      : tokenizer_(tokenizer), listener_(listener), calls_(options, listener) {}

  bool Feed(TokenId id) override {
    if (done_) return true;
    if (tokenizer_.IsReserved(id)) {
      FlushBytes();
      FeedMarker(tokenizer_.TokenBytes(id));
    } else {
      std::string text;
      utf8_.Feed(tokenizer_.TokenBytes(id), &text);
      Emit(text);
    }
    return done_;
  }

  void Finish() override {
    if (done_) return;
    FlushBytes();
    calls_.Abort();
    place_ = Place::kContent;
    done_ = true;
  }

  ReplyChannel channel() const override {
    return place_ == Place::kContent ? ReplyChannel::kContent : ReplyChannel::kToolCalls;
  }
  bool done() const override { return done_; }
  size_t num_tool_calls() const override { return calls_.num_calls(); }

 private:
  enum class Place : uint8_t { kContent, kCalls, kName, kArguments };

  void FeedMarker(std::string_view name) {
    if (name == "<|im_end|>" || name == "[EOS]" || name == "[EOT]") {
      Finish();
    } else if (name == "<|tool_calls_section_begin|>" || name == "<|tool_call_end|>") {
      GoTo(Place::kCalls);
    } else if (name == "<|tool_call_begin|>") {
      GoTo(Place::kName);
      name_.clear();
    } else if (name == "<|tool_call_argument_begin|>" && place_ == Place::kName) {
      place_ = Place::kArguments;
      calls_.BeginCall(FunctionName(name_));
      any_argument_ = false;
    } else if (name == "<|tool_calls_section_end|>") {
      GoTo(Place::kContent);
    }
  }

  void GoTo(Place place) {
    if (place_ == Place::kArguments) calls_.EndCall();
    place_ = place;
  }

  void FlushBytes() {
    std::string text;
    utf8_.Flush(&text);
    Emit(text);
  }
  void Emit(std::string_view text) {
    if (text.empty()) return;
    switch (place_) {
      case Place::kContent:
        listener_.OnContent(text);
        break;
      case Place::kName:
        name_ += text;
        break;
      case Place::kArguments:
        // An empty element still means {}.
        if (!any_argument_) calls_.BeginJson();
        any_argument_ = true;
        calls_.Text(text);
        break;
      case Place::kCalls:
        break;
    }
  }

  const Tokenizer& tokenizer_;
  ReplyListener& listener_;
  Place place_ = Place::kContent;
  std::string name_;
  bool any_argument_ = false;
  bool done_ = false;
  Utf8Stream utf8_;
  ToolCallWriter calls_;
};

}  // namespace

std::unique_ptr<ReplyParser> NewKimiLinearParser(const Tokenizer& tokenizer,
                                                 const ReplyOptions& options,
                                                 ReplyListener& listener) {
  return std::make_unique<KimiLinearParser>(tokenizer, options, listener);
}

}  // namespace thimble
