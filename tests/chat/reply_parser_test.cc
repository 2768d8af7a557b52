#include "chat/reply_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "json/json_value.h"
#include "support/small_ranks.h"

namespace thimble {
namespace {

using Ids = std::vector<TokenId>;

/// What a reader makes of an answer.
struct Reply : ReplyListener {
  void OnReasoning(std::string_view text) override { reasoning += text; }
  void OnContent(std::string_view text) override { content += text; }
  void OnToolCall(size_t index, const std::string& name) override {
    EXPECT_EQ(index, names.size());
    names.push_back(name);
    arguments.emplace_back();
  }
  void OnToolArguments(size_t index, std::string_view piece) override {
    ASSERT_EQ(index + 1, names.size());
    EXPECT_FALSE(piece.empty());
    arguments.back() += piece;
    ++num_pieces;
  }

  std::string reasoning;
  std::string content;
  std::vector<std::string> names;
  std::vector<std::string> arguments;
  size_t num_pieces = 0;
};

class KimiK3ParserTest : public testing::Test {
 protected:
  static const Tokenizer& Mini() {
    static const Tokenizer tokenizer =
        Tokenizer::Load(std::filesystem::path(THIMBLE_SOURCE_DIR) / "models" / "mini");
    return tokenizer;
  }

  static Ids Encode(const std::string& text) {
    Ids ids;
    Mini().EncodeMarkup(text, &ids);
    return ids;
  }

  static Reply Read(const Ids& ids, const ReplyOptions& options = {}) {
    Reply reply;
    const auto parser = NewReplyParser(FindChatMarkup(Mini()), Mini(), options, reply);
    for (const TokenId id : ids) parser->Feed(id);
    parser->Finish();
    EXPECT_TRUE(parser->done());
    EXPECT_EQ(parser->num_tool_calls(), reply.names.size());
    return reply;
  }
  static Reply Read(const std::string& markup, const ReplyOptions& options = {}) {
    return Read(Encode(markup), options);
  }
};

constexpr const char* kAnswer =
    "Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes \u00e9!<|close|>response<|sep|>"
    "<|close|>message<|sep|><|end_of_msg|>";

TEST_F(KimiK3ParserTest, ReadsThoughtAndAnswer) {
  const Reply reply = Read(kAnswer);
  EXPECT_EQ(reply.reasoning, "Hm.");
  EXPECT_EQ(reply.content, "Yes \u00e9!");
  EXPECT_TRUE(reply.names.empty());
}

TEST_F(KimiK3ParserTest, EndsWithTheMessage) {
  Reply reply;
  const auto parser = NewKimiK3Parser(Mini(), {.thinking = false}, reply);
  const Ids ids = Encode("Yes<|close|>response<|sep|><|close|>message<|sep|>");
  EXPECT_EQ(parser->channel(), ReplyChannel::kContent);
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(parser->Feed(ids[i]), i + 1 == ids.size());
  EXPECT_EQ(parser->channel(), ReplyChannel::kNone);
  for (const TokenId id : Encode(" and more")) EXPECT_TRUE(parser->Feed(id));
  parser->Finish();
  EXPECT_EQ(reply.content, "Yes");
}

TEST_F(KimiK3ParserTest, TakesEveryDeviationAsItWasMeant) {
  struct Case {
    const char* markup;
    const char* reasoning;
    const char* content;
  };
  const Case cases[] = {
      // The thought is not closed.
      {"Hm.<|open|>response<|sep|>Yes<|close|>response<|sep|><|close|>message<|sep|>", "Hm.",
       "Yes"},
      // The message closes before its answer.
      {"Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes<|close|>message<|sep|><|end_of_msg|>",
       "Hm.", "Yes"},
      // The prompt had opened the channel.
      {"<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes<|end_of_msg|>",
       "Hm.", "Yes"},
      {"<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>Hm.<|close|>think<|sep|>Yes",
       "Hm.", "Yes"},
      // Text outside of any channel.
      {"<|close|>think<|sep|>\n Yes <|open|>response<|sep|>or no", "", "Yes or no"},
      // A marker that breaks off, or is no tag.
      {"<|close|>think<|sep|><|open|>response<|sep|>Yes<|open|>resp", "", "Yes"},
      {"<|close|>think<|sep|><|open|>response<|sep|>Yes<|close|>respon<|end_of_msg|>", "", "Yes"},
      {"<|close|>think<|sep|>Yes<|open|>response<|open|>response<|sep|> or no", "", "Yes or no"},
      {"<|close|>think<|sep|>Yes<|open|>call tool=\"f\" <|close|>call<|sep|> or no", "",
       "Yes or no"},
      {"<|close|>think<|sep|><|open|>response<|sep|>Yes <|open|>indeed<|close|>response<|sep|>", "",
       "Yes indeed"},
      {"<|close|>think<|sep|><|open|>response<|sep|>Yes<|open|>b<|sep|>no<|close|>b<|sep|>", "",
       "Yesbnob"},
      {"<|close|>think<|sep|><|open|>response<|sep|>Yes<|open|><|open|><|sep|>!", "", "Yes!"},
      // After the end.
      {"Hm.<|close|>message<|sep|>Yes<|open|>response<|sep|>no", "Hm.", ""},
      // Several answers.
      {"<|close|>think<|sep|><|open|>response<|sep|>a<|close|>response<|sep|>\n"
       "<|open|>response<|sep|>b<|close|>response<|sep|>",
       "", "ab"},
      // Only spaces between elements.
      {"Hm.<|close|>think<|sep|>\n\n<|open|>response<|sep|>\nYes", "Hm.", "\nYes"},
  };
  for (const Case& c : cases) {
    const Reply reply = Read(c.markup);
    EXPECT_EQ(reply.reasoning, c.reasoning) << c.markup;
    EXPECT_EQ(reply.content, c.content) << c.markup;
    EXPECT_TRUE(reply.names.empty()) << c.markup;
  }
}

TEST_F(KimiK3ParserTest, SpelledMarkersAreText) {
  Ids ids;
  Mini().Encode("<|close|>think<|sep|> <|end_of_msg|>", &ids);
  EXPECT_EQ(Read(ids).reasoning, "<|close|>think<|sep|> <|end_of_msg|>");
}

TEST_F(KimiK3ParserTest, AHeaderWithoutAnEndIsText) {
  std::string words;
  for (int i = 0; i < 400; ++i) words += " x";
  EXPECT_EQ(Read("<|open|>" + words + "<|sep|>").reasoning, words);
}

TEST_F(KimiK3ParserTest, ReadsCallsOfEveryType) {
  const Reply reply = Read(
      "<|close|>think<|sep|><|open|>tools<|sep|>"
      "<|open|>call tool=\"f &quot;&amp;quot;\" index=\"7\"<|sep|>"
      "<|open|>argument key=\"a\" type=\"string\"<|sep|>x \"y\"\n<|close|>argument<|sep|>"
      "<|open|>argument key=\"b\" type=\"number\"<|sep|>1.0<|close|>argument<|sep|>"
      "<|open|>argument key=\"c\" type=\"object\"<|sep|>{\"k\": [1]}<|close|>argument<|sep|>"
      "<|open|>argument key=\"d\" type=\"number\"<|sep|>one<|close|>argument<|sep|>"
      "<|close|>call<|sep|>"
      "<|open|>call tool=\"g\" index=\"8\"<|sep|><|close|>call<|sep|>"
      "<|open|>call tool=\"h\" index=\"8\"<|sep|>"
      "<|open|>json type=\"object\"<|sep|>{\"a\": b}<|close|>json<|sep|><|close|>call<|sep|>"
      "<|open|>call index=\"9\"<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>x"
      "<|close|>argument<|sep|><|close|>call<|sep|>"
      "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>");
  EXPECT_THAT(reply.names, testing::ElementsAre("f \"&quot;", "g", "h"));
  EXPECT_THAT(
      reply.arguments,
      testing::ElementsAre("{\"a\":\"x \\\"y\\\"\\n\",\"b\":1.0,\"c\":{\"k\": [1]},\"d\":\"one\"}",
                           "{}", "{\"raw\":\"{\\\"a\\\": b}\"}"));
  EXPECT_EQ(reply.content, "");
}

TEST_F(KimiK3ParserTest, StreamsStringArguments) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += " word";
  const Reply reply = Read(
      "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>"
      "<|open|>argument key=\"a\" type=\"string\"<|sep|>" +
      text + "<|close|>argument<|sep|><|close|>call<|sep|>");
  EXPECT_THAT(reply.arguments, testing::ElementsAre("{\"a\":\"" + text + "\"}"));
  EXPECT_GT(reply.num_pieces, 90u);
}

TEST_F(KimiK3ParserTest, CompletesCallsThatBreakOff) {
  const std::string call =
      "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>"
      "<|open|>argument key=\"a\" type=\"string\"<|sep|>x<|close|>argument<|sep|>";
  const auto arguments = [&](const std::string& rest) { return Read(call + rest).arguments.at(0); };
  EXPECT_EQ(arguments(""), "{\"a\":\"x\"}");
  EXPECT_EQ(arguments("<|open|>argument key=\"b\" type=\"string\"<|sep|>half"),
            "{\"a\":\"x\",\"b\":\"half\"}");
  EXPECT_EQ(arguments("<|open|>argument key=\"b\" type=\"number\"<|sep|>12"), "{\"a\":\"x\"}");
  EXPECT_EQ(arguments("<|close|>tools<|sep|><|open|>response<|sep|>no"), "{\"a\":\"x\"}");
  EXPECT_EQ(arguments("<|open|>call tool=\"g\" index=\"2\"<|sep|>"), "{\"a\":\"x\"}");
}

TEST_F(KimiK3ParserTest, AnswerAndCallsComeInEitherOrder) {
  const std::string call =
      "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|close|>call<|sep|>"
      "<|close|>tools<|sep|>";
  const std::string answer = "<|open|>response<|sep|>Yes<|close|>response<|sep|>";
  for (const std::string& body :
       {call + answer, answer + call, "<|close|>think<|sep|>" + call + answer}) {
    const Reply reply = Read(body + "<|close|>message<|sep|><|end_of_msg|>");
    EXPECT_EQ(reply.content, "Yes");
    EXPECT_THAT(reply.names, testing::ElementsAre("f"));
  }
}

TEST_F(KimiK3ParserTest, DropsCallsThatNobodyAskedFor) {
  const Reply reply = Read(
      "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument "
      "key=\"a\" type=\"string\"<|sep|>x<|close|>argument<|sep|><|close|>call<|sep|>"
      "<|close|>tools<|sep|><|open|>response<|sep|>Yes",
      {.thinking = true, .tools = false});
  EXPECT_TRUE(reply.names.empty());
  EXPECT_EQ(reply.content, "Yes");
}

TEST_F(KimiK3ParserTest, DropsCallsOfFunctionsThatWereNotOffered) {
  const auto call = [](const std::string& name) {
    return "<|open|>call tool=\"" + name +
           "\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>" + name +
           "<|close|>argument<|sep|><|close|>call<|sep|>";
  };
  ReplyOptions options;
  options.functions = {"f", "g"};
  const Reply reply = Read("<|close|>think<|sep|><|open|>tools<|sep|>" + call("f") + call("rm") +
                               call("g") + "<|close|>tools<|sep|><|close|>message<|sep|>",
                           options);
  EXPECT_THAT(reply.names, testing::ElementsAre("f", "g"));
  EXPECT_THAT(reply.arguments, testing::ElementsAre(R"({"a":"f"})", R"({"a":"g"})"));
  EXPECT_EQ(reply.content, "");
}

TEST_F(KimiK3ParserTest, ArgumentsAreAlwaysAnObject) {
  const auto arguments = [](const std::string& json) {
    return Read(
               "<|open|>tools<|sep|><|open|>call tool=\"f\"<|sep|><|open|>json "
               "type=\"object\"<|sep|>" +
               json)
        .arguments.at(0);
  };
  for (const char* close : {"", "<|close|>json<|sep|><|close|>call<|sep|>"}) {
    EXPECT_EQ(arguments(std::string("{\"a\": [1]} ") + close), "{\"a\": [1]} ");
    EXPECT_EQ(arguments(std::string("null") + close), "{}");
    EXPECT_EQ(arguments(std::string(" ") + close), "{}");
    EXPECT_EQ(arguments(close), "{}");
    EXPECT_EQ(arguments(std::string("[1]") + close), R"({"raw":"[1]"})");
    EXPECT_EQ(arguments(std::string("\"x\"") + close), R"({"raw":"\"x\""})");
    EXPECT_EQ(arguments(std::string("{\"a\": \"x") + close), R"({"raw":"{\"a\": \"x"})");
  }
}

// Every beginning of an answer, as a limit of tokens may leave it: no markup in any text, texts
// that only grow, and arguments that are an object.
void CheckCuts(const Tokenizer& tokenizer, const std::string& markup, const ReplyOptions& options) {
  Ids ids;
  tokenizer.EncodeMarkup(markup, &ids);
  const auto read = [&](size_t count) {
    Reply reply;
    const auto parser = NewReplyParser(FindChatMarkup(tokenizer), tokenizer, options, reply);
    for (size_t i = 0; i < count; ++i) parser->Feed(ids[i]);
    parser->Finish();
    return reply;
  };
  const Reply whole = read(ids.size());
  for (size_t count = 0; count < ids.size(); ++count) {
    const Reply cut = read(count);
    const std::string place = tokenizer.Decode(std::span(ids).first(count));
    EXPECT_TRUE(whole.reasoning.starts_with(cut.reasoning)) << place << ": " << cut.reasoning;
    EXPECT_TRUE(whole.content.starts_with(cut.content)) << place << ": " << cut.content;
    ASSERT_LE(cut.names.size(), whole.names.size()) << place;
    for (size_t i = 0; i < cut.names.size(); ++i) {
      EXPECT_EQ(cut.names[i], whole.names[i]) << place;
      EXPECT_TRUE(IsJson(cut.arguments[i]) && ParseJson(cut.arguments[i]).is_object())
          << place << ": " << cut.arguments[i];
      if (i + 1 < cut.names.size()) {
        EXPECT_EQ(cut.arguments[i], whole.arguments[i]) << place;
      }
    }
  }
}

TEST_F(KimiK3ParserTest, AnAnswerMayBeCutAfterEveryToken) {
  const std::string body =
      "Let me see.<|close|>think<|sep|><|open|>response<|sep|>One moment.<|close|>response<|sep|>"
      "<|open|>tools<|sep|><|open|>call tool=\"read\" index=\"1\"<|sep|>"
      "<|open|>argument key=\"path\" type=\"string\"<|sep|>a \"b\" c<|close|>argument<|sep|>"
      "<|open|>argument key=\"lines\" type=\"object\"<|sep|>{\"from\": 1}<|close|>argument<|sep|>"
      "<|close|>call<|sep|><|open|>call tool=\"other\" index=\"2\"<|sep|>"
      "<|open|>json type=\"object\"<|sep|>{\"x\": [1, "
      "\"y\"]}<|close|>json<|sep|><|close|>call<|sep|>"
      "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";
  CheckCuts(Mini(), body, {});
  CheckCuts(Mini(), body, {.thinking = true, .tools = true, .functions = {"other"}});
  CheckCuts(Mini(), body, {.thinking = true, .tools = false});
  CheckCuts(Mini(), body.substr(body.find("One")), {.thinking = false});
}

TEST_F(KimiK3ParserTest, HoldsBackPartsOfCharacters) {
  // A reserved token in the middle of a character: U+FFFD, and no id of its own.
  Ids ids = Encode("<|close|>think<|sep|><|open|>response<|sep|>");
  ids.push_back(Encode("\u00e9").front());
  if (Mini().TokenBytes(ids.back()) == "\u00e9") ids.back() = 0xc3;
  ids.push_back(Encode("<|media_pad|>").front());
  EXPECT_EQ(Read(ids).content, "\ufffd");
}

// Rendered and read back, an answer of the history is what it was.
TEST_F(KimiK3ParserTest, ReadsWhatTheTemplateWrites) {
  const ChatRequest request = ReadChatRequest(ParseJson(R"({"add_generation_prompt": false,
    "messages": [{"role": "assistant", "reasoning": "Hm \" & 1", "content": "so\nbe it",
      "tool_calls": [{"function": {"name": "a\"b&c", "arguments":
        {"s": "x\"\\y", "n": -1.5, "b": true, "z": null, "o": {"k": [1, 2]}, "l": []}}},
        {"function": {"name": "g", "arguments": "{oh"}}]}]})"));
  const Ids ids = EncodeChat(Mini(), request).ids;
  const Ids stub = Encode("<|open|>message");
  ASSERT_GT(ids.size(), stub.size());
  const Reply reply = Read(ids);
  EXPECT_EQ(reply.reasoning, "Hm \" & 1");
  EXPECT_EQ(reply.content, "so\nbe it");
  EXPECT_THAT(reply.names, testing::ElementsAre("a\"b&c", "g"));
  EXPECT_EQ(ParseJson(reply.arguments[0]).members, request.messages[0].tool_calls[0].arguments);
  EXPECT_EQ(reply.arguments[1], R"({"raw":"{oh"})");
}

// An answer cut anywhere outside of a tag, and ended, is one that the template would write.
TEST_F(KimiK3ParserTest, EndsAnAnswerThatBrokeOff) {
  const auto ended = [](ReplyChannel channel, bool closed) {
    return Mini().Decode(EndOfReply(Mini(), channel, closed));
  };
  EXPECT_EQ(ended(ReplyChannel::kReasoning, false),
            "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>"
            "<|close|>message<|sep|><|end_of_msg|>");
  EXPECT_EQ(ended(ReplyChannel::kContent, false),
            "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>");
  EXPECT_EQ(ended(ReplyChannel::kNone, false), "<|close|>message<|sep|><|end_of_msg|>");
  EXPECT_EQ(ended(ReplyChannel::kNone, true), "<|end_of_msg|>");
}

TEST_F(KimiK3ParserTest, ANextTurnContinuesThePrompt) {
  ChatRequest request = ReadChatRequest(ParseJson(
      R"({"messages": [{"role": "system", "content": "Be brief."}], "thinking_effort": "low",
          "add_generation_prompt": false})"));
  Ids ids = EncodeChat(Mini(), request).ids;
  const Ids turn = EncodeNextTurn(Mini(), request, "Hi").ids;
  ids.insert(ids.end(), turn.begin(), turn.end());
  request.messages.push_back({});
  request.messages.back().content = {{"Hi", std::nullopt}};
  request.add_generation_prompt = true;
  EXPECT_EQ(ids, EncodeChat(Mini(), request).ids);
}

const Tokenizer& CallTokenizer() {
  static const Tokenizer tokenizer = [] {
    const std::string ranks = SmallRankFile({});
    const std::string config = R"({"added_tokens_decoder": {
      "258": {"content": "<|im_end|>"}, "259": {"content": "<|im_user|>"},
      "267": {"content": "<|tool_calls_section_begin|>"},
      "268": {"content": "<|tool_calls_section_end|>"}, "269": {"content": "<|tool_call_begin|>"},
      "270": {"content": "<|tool_call_argument_begin|>"}, "271": {"content": "<|tool_call_end|>"},
      "273": {"content": "<|im_middle|>"}}})";
    return Tokenizer::Parse({.ranks = ranks, .config = config, .directory = "test"});
  }();
  return tokenizer;
}

TEST(KimiLinearParserTest, AnAnswerMayBeCutAfterEveryToken) {
  const std::string body =
      "Well.<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0"
      "<|tool_call_argument_begin|>{\"k\": [1, \"x\"]}<|tool_call_end|><|tool_call_begin|>b"
      "<|tool_call_argument_begin|>null<|tool_call_end|><|tool_calls_section_end|>!<|im_end|>";
  CheckCuts(CallTokenizer(), body, {.thinking = false});
  CheckCuts(CallTokenizer(), body, {.thinking = false, .tools = true, .functions = {"b"}});
}

TEST(KimiLinearParserTest, ReadsTextAndCalls) {
  const Tokenizer& tokenizer = CallTokenizer();
  Ids ids;
  tokenizer.EncodeMarkup(
      "Well.<|tool_calls_section_begin|><|tool_call_begin|> functions.a:b:3 "
      "<|tool_call_argument_begin|>{\"k\": 1}<|tool_call_end|><|tool_call_begin|>plain"
      "<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>!<|im_end|>more",
      &ids);
  Reply reply;
  const auto parser =
      NewReplyParser(ChatMarkup::kKimiLinear, tokenizer, {.thinking = false}, reply);
  for (const TokenId id : ids) parser->Feed(id);
  EXPECT_TRUE(parser->done());
  EXPECT_EQ(reply.content, "Well.!");
  EXPECT_THAT(reply.names, testing::ElementsAre("a:b", "plain"));
  EXPECT_THAT(reply.arguments, testing::ElementsAre("{\"k\": 1}", "{}"));
}

}  // namespace
}  // namespace thimble
