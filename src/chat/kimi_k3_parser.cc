#include <algorithm>
#include <map>

#include "base/error.h"
#include "chat/reply_parser.h"
#include "chat/tool_call_writer.h"
#include "text/utf8_stream.h"

namespace thimble {
namespace {

// Longer than any tag that a model means.
constexpr size_t kMaxHeaderTokens = 256;

TokenId RequireSpecial(const Tokenizer& tokenizer, std::string_view name) {
  const auto id = tokenizer.FindSpecial(name);
  THIMBLE_CHECK(id.has_value());
  return *id;
}

struct Header {
  std::string tag;
  std::map<std::string, std::string> attributes;
};

std::string Unescape(std::string_view value) {
  std::string plain;
  while (!value.empty()) {
    if (value.starts_with("&quot;")) {
      plain += '"';
      value.remove_prefix(6);
    } else if (value.starts_with("&amp;")) {
      plain += '&';
      value.remove_prefix(5);
    } else {
      plain += value.front();
      value.remove_prefix(1);
    }
  }
  return plain;
}

std::string ValidText(std::string_view bytes) {
  Utf8Stream stream;
  std::string text;
  stream.Feed(bytes, &text);
  stream.Flush(&text);
  return text;
}

// `tag key="value" ...`; whatever does not fit that is left out.
Header ParseHeader(std::string_view text) {
  const size_t end = std::min(text.find(' '), text.size());
  Header header = {std::string(text.substr(0, end)), {}};
  text.remove_prefix(end);
  while (true) {
    const size_t equals = text.find("=\"");
    if (equals == std::string_view::npos) return header;
    std::string_view key = text.substr(0, equals);
    key.remove_prefix(std::min(key.find_first_not_of(' '), key.size()));
    text.remove_prefix(equals + 2);
    const size_t quote = text.find('"');
    if (quote == std::string_view::npos) return header;
    header.attributes.emplace(key, Unescape(text.substr(0, quote)));
    text.remove_prefix(quote + 1);
  }
}

// Whether `header`, which broke off, begins with a tag or with the beginning of one.
bool MayBeTag(std::string_view header) {
  constexpr std::string_view kTags[] = {"think", "response", "tools",  "call",
                                        "json",  "argument", "message"};
  const std::string_view word = header.substr(0, header.find(' '));
  const bool whole = word.size() < header.size();
  return std::ranges::any_of(
      kTags, [&](std::string_view tag) { return whole ? tag == word : tag.starts_with(word); });
}

class KimiK3Parser : public ReplyParser {
 public:
  KimiK3Parser(const Tokenizer& tokenizer, const ReplyOptions& options, ReplyListener& listener)
      : tokenizer_(tokenizer),
        listener_(listener),
        open_(RequireSpecial(tokenizer, "<|open|>")),
        close_(RequireSpecial(tokenizer, "<|close|>")),
        sep_(RequireSpecial(tokenizer, "<|sep|>")),
        end_(RequireSpecial(tokenizer, "<|end_of_msg|>")),
        eos_(tokenizer.FindSpecial("[EOS]").value_or(end_)),
        place_(options.thinking ? Place::kThink : Place::kResponse),
        calls_(options, listener) {}

  bool Feed(TokenId id) override {
    if (done_) return true;
    if (id == end_ || id == eos_) {
      EndMessage();
    } else if (id == open_ || id == close_) {
      BreakHeader();
      FlushBytes();
      marker_ = id;
    } else if (marker_ != 0) {
      FeedHeader(id);
    } else if (tokenizer_.IsReserved(id)) {
      FlushBytes();
    } else {
      FeedBytes(tokenizer_.TokenBytes(id));
    }
    return done_;
  }

  void Finish() override {
    if (!done_) EndMessage();
  }

  ReplyChannel channel() const override {
    switch (place_) {
      case Place::kThink:
        return ReplyChannel::kReasoning;
      case Place::kResponse:
        return ReplyChannel::kContent;
      case Place::kTools:
      case Place::kCall:
        return ReplyChannel::kToolCalls;
      case Place::kOutside:
        break;
    }
    return ReplyChannel::kNone;
  }
  bool done() const override { return done_; }
  size_t num_tool_calls() const override { return calls_.num_calls(); }

 private:
  enum class Place : uint8_t { kOutside, kThink, kResponse, kTools, kCall };

  void EndMessage() {
    DropHeader();
    FlushBytes();
    calls_.Abort();
    place_ = Place::kOutside;
    done_ = true;
  }

  void FeedHeader(TokenId id) {
    if (id == sep_) {
      const bool opens = marker_ == open_;
      const std::string text = ValidText(header_);
      DropHeader();
      opens ? OpenElement(text) : CloseElement(text);
      return;
    }
    if (tokenizer_.IsReserved(id)) return BreakHeader();
    header_ += tokenizer_.TokenBytes(id);
    if (++header_tokens_ == kMaxHeaderTokens) FlushHeader();
  }
  void DropHeader() {
    marker_ = 0;
    header_.clear();
    header_tokens_ = 0;
  }
  // Another marker came before the end of a header. What may have become a tag is markup and no
  // part of the answer; anything else is text.
  void BreakHeader() {
    if (MayBeTag(header_)) DropHeader();
    FlushHeader();
  }
  // What followed a marker was no tag: it is text.
  void FlushHeader() {
    const std::string text = std::move(header_);
    DropHeader();
    FeedBytes(text);
  }

  void OpenElement(const std::string& text) {
    const Header header = ParseHeader(text);
    const auto attribute = [&](const char* key) {
      const auto found = header.attributes.find(key);
      return found == header.attributes.end() ? std::string() : found->second;
    };
    if (header.tag == "think") {
      GoTo(Place::kThink);
    } else if (header.tag == "response") {
      GoTo(Place::kResponse);
    } else if (header.tag == "tools") {
      GoTo(Place::kTools);
    } else if (header.tag == "call") {
      GoTo(Place::kCall);
      calls_.BeginCall(attribute("tool"));
    } else if (header.tag == "argument" && place_ == Place::kCall) {
      calls_.BeginArgument(attribute("key"), attribute("type"));
    } else if (header.tag == "json" && place_ == Place::kCall) {
      calls_.BeginJson();
    } else if (header.tag != "message") {
      FeedBytes(text);
    }
  }

  void CloseElement(const std::string& tag) {
    if (tag == "message") {
      EndMessage();
    } else if (tag == "argument" || tag == "json") {
      calls_.EndElement();
    } else if (tag == "call") {
      if (place_ == Place::kCall) GoTo(Place::kTools);
    } else if (tag == "tools") {
      if (place_ == Place::kTools || place_ == Place::kCall) GoTo(Place::kOutside);
    } else if (tag == "think" || tag == "response") {
      if (place_ == Place::kThink || place_ == Place::kResponse) GoTo(Place::kOutside);
    } else {
      FeedBytes(tag);
    }
  }

  void GoTo(Place place) {
    if (place_ == Place::kCall) calls_.EndCall();
    place_ = place;
    after_element_ = place == Place::kOutside;
  }

  void FeedBytes(std::string_view bytes) {
    std::string text;
    utf8_.Feed(bytes, &text);
    Emit(text);
  }
  void FlushBytes() {
    std::string text;
    utf8_.Flush(&text);
    Emit(text);
  }
  void Emit(std::string_view text) {
    if (place_ == Place::kOutside && after_element_) {
      // Spaces between elements are no part of the answer.
      text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
      after_element_ = text.empty();
    }
    if (text.empty()) return;
    if (place_ == Place::kThink) {
      listener_.OnReasoning(text);
    } else if (place_ == Place::kCall) {
      calls_.Text(text);
    } else if (place_ != Place::kTools) {
      listener_.OnContent(text);
    }
  }

  const Tokenizer& tokenizer_;
  ReplyListener& listener_;
  const TokenId open_, close_, sep_, end_, eos_;
  Place place_;
  bool after_element_ = false;
  bool done_ = false;
  TokenId marker_ = 0;  // open_ or close_ while a header is read; these are never 0
  std::string header_;
  size_t header_tokens_ = 0;
  Utf8Stream utf8_;
  ToolCallWriter calls_;
};

}  // namespace

std::unique_ptr<ReplyParser> NewKimiK3Parser(const Tokenizer& tokenizer,
                                             const ReplyOptions& options, ReplyListener& listener) {
  return std::make_unique<KimiK3Parser>(tokenizer, options, listener);
}

}  // namespace thimble
