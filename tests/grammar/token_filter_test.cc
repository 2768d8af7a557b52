#include "grammar/token_filter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "chat/reply_parser.h"
#include "grammar/answer_grammar.h"
#include "grammar/schema_validator.h"
#include "support/expect_error.h"

namespace thimble {
namespace {

const Tokenizer& Mini() {
  static const Tokenizer tokenizer = Tokenizer::Load(THIMBLE_SOURCE_DIR "/models/mini");
  return tokenizer;
}

// The same ranks with the names of Kimi-Linear's special tokens.
const Tokenizer& Linear() {
  static const Tokenizer tokenizer = [] {
    std::string ranks;
    constexpr char kBase64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int byte = 0; byte < 256; ++byte) {
      ranks += {kBase64[byte >> 2], kBase64[(byte & 3) << 4], '=', '=', ' '};
      ranks += std::to_string(byte) + "\n";
    }
    std::string config = R"({"added_tokens_decoder": {)";
    int id = 256;
    for (const char* name :
         {"[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>",
          "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
          "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|im_middle|>"}) {
      config +=
          (id == 256 ? "\"" : ",\"") + std::to_string(id) + R"(":{"content":")" + name + "\"}";
      ++id;
    }
    config += "}}";
    return Tokenizer::Parse({.ranks = ranks, .config = config, .directory = "test"});
  }();
  return tokenizer;
}

std::vector<TokenId> Ids(const Tokenizer& tokenizer, const std::string& markup) {
  std::vector<TokenId> ids;
  tokenizer.EncodeMarkup(markup, &ids);
  return ids;
}

std::unique_ptr<TokenFilter> NewFilter(const Tokenizer& tokenizer, const ChatRequest& request,
                                       const TextForm& form, std::string_view begun = {}) {
  const ChatMarkup markup = FindChatMarkup(tokenizer);
  auto bound = BindAnswer(request, form, markup, tokenizer);
  if (!bound) return nullptr;
  EXPECT_EQ(bound->unbound, std::vector<std::string>());
  return std::make_unique<TokenFilter>(std::make_shared<LazyTokenTrie>(tokenizer),
                                       std::move(bound->grammar), begun);
}
std::unique_ptr<TokenFilter> ForSchema(const std::string& schema, bool thinking) {
  ChatRequest request;
  request.thinking = thinking;
  request.response_format = ResponseFormat::kJsonSchema;
  request.schema = ParseJson(schema);
  return NewFilter(Mini(), request, FormOf(request));
}

ChatRequest WithTools(const std::string& tools, ToolChoice choice, bool thinking = false) {
  ChatRequest request;
  request.thinking = thinking;
  request.tools = ParseJson(tools);
  request.tool_choice = choice;
  return request;
}

// Whether the filter takes the whole text, token by token, to its end.
bool Takes(const Tokenizer& tokenizer, std::unique_ptr<TokenFilter> filter,
           const std::string& markup) {
  for (const TokenId id : Ids(tokenizer, markup)) {
    if (filter->ended() || !filter->Allows(id)) return false;
    filter->Accept(id);
  }
  return filter->ended();
}

std::vector<TokenId> AllowedIds(TokenFilter& filter, const Tokenizer& tokenizer) {
  const TokenMask& mask = filter.Allowed();
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (mask.Has(id)) ids.push_back(id);
  }
  return ids;
}

constexpr const char* kPerson =
    R"({"type": "object", "additionalProperties": false, "required": ["name", "old"],
        "properties": {"name": {"enum": ["Adam", "Abel", "Noë"]}, "old": {"type": "boolean"}}})";
constexpr const char* kEnd = "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>";
constexpr const char* kTools = R"([{"type":"function","function":{"name":"add","parameters":{
    "type":"object","properties":{"a":{"type":"integer","minimum":1,"maximum":40},
    "unit":{"type":["string","null"],"maxLength":6},"tags":{"type":"array","items":{"type":"string",
    "pattern":"^[a-z]+$","maxLength":3},"maxItems":2}},"required":["a","unit"],
    "additionalProperties":false}}},{"type":"function","function":{"name":"now","parameters":{
    "type":"object","properties":{},"additionalProperties":false}}}])";

// Every answer that the schema allows.
std::vector<std::string> People() {
  std::vector<std::string> people;
  for (const char* name : {"Adam", "Abel", "Noë"}) {
    for (const char* old : {"true", "false"}) {
      people.push_back(std::string(R"({"name":")") + name + R"(","old":)" + old + "}");
    }
  }
  return people;
}

// At each step of many answers, of all the vocabulary those tokens are allowed by which one of the
// answers can go on, tokens that span several parts of the JSON or end within a character included.
TEST(TokenFilterTest, AllowsWhatCanBecomeAnAnswerAndNothingElse) {
  const std::vector<std::string> people = People();
  const TokenId close = Ids(Mini(), "<|close|>")[0];
  std::mt19937 random(1);
  for (int round = 0; round < 6; ++round) {
    const auto filter = ForSchema(kPerson, false);
    std::string text;
    while (true) {
      std::vector<TokenId> expected;
      const bool whole = std::ranges::find(people, text) != people.end();
      for (TokenId id = 0; id < Mini().vocab_size(); ++id) {
        const std::string longer = text + std::string(Mini().TokenBytes(id));
        const bool goes_on =
            !Mini().IsReserved(id) && std::ranges::any_of(people, [&](const std::string& person) {
              return person.starts_with(longer);
            });
        if (goes_on || (whole && id == close)) expected.push_back(id);
        ASSERT_EQ(filter->Allows(id), goes_on || (whole && id == close)) << text;
      }
      const std::vector<TokenId> allowed = AllowedIds(*filter, Mini());
      ASSERT_EQ(allowed, expected) << text;
      const TokenId id = allowed[random() % allowed.size()];
      filter->Accept(id);
      if (id == close) break;
      text += Mini().TokenBytes(id);
    }
    EXPECT_NE(std::ranges::find(people, text), people.end()) << text;
  }
}

TEST(TokenFilterTest, AThoughtIsFreeAndItsEndIsNot) {
  const auto filter = ForSchema(kPerson, true);
  // Any text, but no marker except the one that ends the thought.
  EXPECT_EQ(filter->Allowed().Count(), Mini().num_ranks() + 1);
  for (const TokenId id : Ids(Mini(), "Adam { was <old.<|close|>")) {
    ASSERT_TRUE(filter->Allows(id));
    filter->Accept(id);
  }
  EXPECT_EQ(filter->Forced(100), "think");
  for (const TokenId id : Ids(Mini(), "think<|sep|><|open|>response<|sep|>")) filter->Accept(id);
  EXPECT_EQ(filter->Forced(100), R"({"name":")");
  EXPECT_EQ(filter->Forced(4), R"({"na)");
  for (const TokenId id : Ids(Mini(), std::string(R"({"name":"Noë","old":true})") + kEnd)) {
    ASSERT_TRUE(filter->Allows(id)) << Mini().TokenBytes(id);
    filter->Accept(id);
  }
  EXPECT_TRUE(filter->ended());
  EXPECT_EQ(filter->Allowed().Count(), Mini().vocab_size());
}

TEST(TokenFilterTest, NoSpecialTokenIsPartOfTheJson) {
  const auto filter = ForSchema(R"({"type": "string"})", false);
  for (const char* token : {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[EOS]"}) {
    EXPECT_FALSE(filter->Allows(Ids(Mini(), token)[0])) << token;
  }
  // Spelled as text, it is one like any other.
  std::vector<TokenId> spelled;
  Mini().Encode("\"<|close|>\"", &spelled);
  for (const TokenId id : spelled) {
    ASSERT_TRUE(filter->Allows(id));
    filter->Accept(id);
  }
  EXPECT_TRUE(filter->Allows(Ids(Mini(), "<|close|>")[0]));
  EXPECT_FALSE(filter->Allows(spelled[0]));
}

// What is allowed depends on the answer alone, not on what was asked before or forgotten.
TEST(TokenFilterTest, TheSameAnswerAllowsTheSame) {
  const char* schema = R"({"type":"object","properties":{"a":{"type":"string","maxLength":2000},
      "b":{"type":"array","items":{}}},"required":["a","b"]})";
  const auto asked = ForSchema(schema, false);
  std::mt19937 random(3);
  std::vector<TokenId> ids;
  for (int i = 0; i < 150 && !asked->ended(); ++i) {
    const std::vector<TokenId> allowed = AllowedIds(*asked, Mini());
    ids.push_back(allowed[random() % allowed.size()]);
    asked->Accept(ids.back());
    if (i % 50 != 0) continue;
    const auto fresh = ForSchema(schema, false);
    for (const TokenId id : ids) fresh->Accept(id);
    ASSERT_EQ(AllowedIds(*fresh, Mini()), AllowedIds(*asked, Mini()));
  }
}

TEST(TokenFilterTest, ContinuesWhatHasBegun) {
  ChatRequest request;
  request.thinking = false;
  request.response_format = ResponseFormat::kJsonSchema;
  request.schema = ParseJson(kPerson);
  auto filter = NewFilter(Mini(), request, FormOf(request), R"({"name":"A)");
  EXPECT_TRUE(Takes(Mini(), std::move(filter), R"(dam","old":true})" + std::string(kEnd)));
  ExpectError(ErrorCode::kUsage, {"continued"},
              [&] { NewFilter(Mini(), request, FormOf(request), "Sure: "); });
}

TEST(TokenFilterTest, ChoicesAndPatterns) {
  ChatRequest request;
  request.thinking = false;
  TextForm form = {TextForm::Kind::kChoice, "guided_choice", {}, {"yes", "yes, but"}, {}};
  const auto filter = [&] { return NewFilter(Mini(), request, form); };
  EXPECT_TRUE(Takes(Mini(), filter(), std::string("yes") + kEnd));
  EXPECT_TRUE(Takes(Mini(), filter(), std::string("yes, but") + kEnd));
  EXPECT_FALSE(Takes(Mini(), filter(), std::string("yes,") + kEnd));
  form = {TextForm::Kind::kPattern, "guided_regex", {}, {}, "[a-z]{2}\\n?"};
  EXPECT_TRUE(Takes(Mini(), filter(), std::string("ab\n") + kEnd));
  EXPECT_FALSE(Takes(Mini(), filter(), std::string("abc") + kEnd));
  form.pattern = "(";
  ExpectError(ErrorCode::kUsage, {"guided_regex: not a regular"}, filter);
  form = {TextForm::Kind::kChoice, "guided_choice", {}, {}, {}};
  ExpectError(ErrorCode::kUsage, {"guided_choice: expected at least one"}, filter);
  // Without a chat's markup.
  form.choices = {"yes"};
  const TokenId end = Ids(Mini(), "[EOS]")[0];
  AnswerGrammar text = BindText(form, Mini(), std::vector<TokenId>{end});
  EXPECT_TRUE(Takes(Mini(),
                    std::make_unique<TokenFilter>(std::make_shared<LazyTokenTrie>(Mini()),
                                                  std::move(text.grammar)),
                    "yes[EOS]"));
}

// What a model writes that may only call: read back, each call is of an offered tool and its
// arguments fit the schema.
class CallReader : public ReplyListener {
 public:
  void OnReasoning(std::string_view) override {}
  void OnContent(std::string_view text) override { content += text; }
  void OnToolCall(size_t, const std::string& name) override { calls.push_back({name, ""}); }
  void OnToolArguments(size_t, std::string_view piece) override { calls.back().second += piece; }
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;
};

void CheckRandomCalls(const Tokenizer& tokenizer, const ChatRequest& request, size_t most) {
  const JsonValue schema = request.tools->items[0].Find("function")->members[1].value;
  const SchemaValidator validator(schema);
  std::mt19937 random(5);
  for (int round = 0; round < 8; ++round) {
    const auto filter = NewFilter(tokenizer, request, FormOf(request));
    CallReader reader;
    const auto parser =
        NewReplyParser(FindChatMarkup(tokenizer), tokenizer, {request.thinking, true}, reader);
    for (int i = 0; i < 3000 && !filter->ended(); ++i) {
      const std::vector<TokenId> allowed = AllowedIds(*filter, tokenizer);
      ASSERT_FALSE(allowed.empty());
      // Specials end things, and a model does that sooner than one token in thousands.
      const bool ends = random() % 3 == 0 && tokenizer.IsReserved(allowed.back());
      const TokenId id = ends ? allowed.back() : allowed[random() % allowed.size()];
      filter->Accept(id);
      parser->Feed(id);
    }
    ASSERT_TRUE(filter->ended());
    EXPECT_EQ(reader.content, "");
    ASSERT_GE(reader.calls.size(), 1u);
    EXPECT_LE(reader.calls.size(), most);
    for (const auto& [name, arguments] : reader.calls) {
      ASSERT_TRUE(IsJson(arguments)) << arguments;
      EXPECT_TRUE(name == "add" || name == "now") << name;
      EXPECT_TRUE(name != "add" || validator.Fits(ParseJson(arguments))) << arguments;
    }
  }
}

TEST(TokenFilterTest, ARequiredCallIsOfAToolThatIsOffered) {
  ChatRequest request = WithTools(kTools, ToolChoice::kRequired);
  for (const Tokenizer* tokenizer : {&Mini(), &Linear()}) {
    request.parallel_tool_calls = true;
    CheckRandomCalls(*tokenizer, request, 128);
    request.parallel_tool_calls = false;
    CheckRandomCalls(*tokenizer, request, 1);
  }
}

constexpr const char* kBegin = "<|close|>response<|sep|><|open|>tools<|sep|>";
constexpr const char* kEndCalls = "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";

std::string AddCall(const std::string& a) {
  return R"(<|open|>call tool="add" index="1"<|sep|><|open|>argument key="a" type="number"<|sep|>)" +
         a + R"(<|close|>argument<|sep|><|open|>argument key="unit" type="null"<|sep|>null)" +
         "<|close|>argument<|sep|><|close|>call<|sep|>";
}
const std::string kNowCall = R"(<|open|>call tool="now" index="1"<|sep|><|close|>call<|sep|>)";

TEST(TokenFilterTest, ANamedChoiceIsThatTool) {
  ChatRequest request = WithTools(kTools, ToolChoice::kRequired);
  request.callable_tools = {"add"};
  const auto takes = [&](const std::string& text) {
    return Takes(Mini(), NewFilter(Mini(), request, {}), text);
  };
  EXPECT_TRUE(takes(kBegin + AddCall("40") + kEndCalls));
  EXPECT_TRUE(takes(kBegin + AddCall("1") + AddCall("2") + kEndCalls));
  EXPECT_FALSE(takes(kBegin + AddCall("41") + kEndCalls));
  EXPECT_FALSE(takes(kBegin + kNowCall + kEndCalls));
  EXPECT_FALSE(takes(kBegin + std::string(kEndCalls)));
  EXPECT_FALSE(takes("Hello" + (kBegin + AddCall("1")) + kEndCalls));
  EXPECT_FALSE(takes(kEnd));
  request.thinking = true;
  EXPECT_TRUE(takes("Hm.<|close|>think<|sep|><|open|>response<|sep|>" + (kBegin + AddCall("1")) +
                    kEndCalls));
  const std::string linear =
      R"(<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>)";
  const std::string linear_end = "<|tool_call_end|><|tool_calls_section_end|><|im_end|>";
  const auto linear_takes = [&](const std::string& arguments) {
    return Takes(Linear(), NewFilter(Linear(), request, {}), linear + arguments + linear_end);
  };
  EXPECT_TRUE(linear_takes(R"({"a": 3, "unit": null})"));
  EXPECT_TRUE(linear_takes(R"({"a":3,"unit":"kg","tags": ["x", "yz"]})"));
  EXPECT_FALSE(linear_takes(R"({"a": 3})"));
  EXPECT_FALSE(linear_takes("{\"a\":  3,\"unit\":null}"));
}

TEST(TokenFilterTest, CallsThatAreFreeAreBoundOnlyWhereThatIsAsked) {
  EXPECT_EQ(NewFilter(Mini(), WithTools(kTools, ToolChoice::kAuto), {}), nullptr);
  EXPECT_EQ(NewFilter(Mini(), ChatRequest(), {}), nullptr);
  ChatRequest request = WithTools(kTools, ToolChoice::kAuto);
  request.parallel_tool_calls = false;
  const auto takes = [&](const std::string& text, const TextForm& form = {}) {
    return Takes(Mini(), NewFilter(Mini(), request, form), text);
  };
  // Any arguments that are well formed, one call.
  EXPECT_TRUE(takes(std::string("Hello!") + kEnd));
  EXPECT_TRUE(takes("Hello!" + (kBegin + AddCall("99")) + kEndCalls));
  EXPECT_FALSE(takes(kBegin + AddCall("99") + AddCall("1") + kEndCalls));
  // With "strict" the arguments fit.
  request.parallel_tool_calls = true;
  request.tools->items[0].members[1].value.members.push_back({"strict", ParseJson("true")});
  EXPECT_TRUE(takes("Hello!" + (kBegin + AddCall("9") + kNowCall) + kEndCalls));
  EXPECT_FALSE(takes(kBegin + AddCall("99") + kEndCalls));
  // With a format: such a text, or calls.
  TextForm form = {TextForm::Kind::kJsonObject, "response_format", {}, {}, {}};
  EXPECT_TRUE(takes(std::string("{}") + kEnd, form));
  EXPECT_TRUE(takes(kBegin + kNowCall + kEndCalls, form));
  EXPECT_FALSE(takes(std::string("Hello!") + kEnd, form));
}

TEST(TokenFilterTest, NamesTheToolWhoseSchemaIsWrong) {
  const ChatRequest request = WithTools(
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object",
          "properties":{"n":{"type":"integer","minimum":2,"maximum":1}}}}}])",
      ToolChoice::kRequired);
  ExpectError(ErrorCode::kUsage, {"tools[0].function.parameters.properties.n.minimum"},
              [&] { NewFilter(Mini(), request, {}); });
}

TEST(TokenTrieTest, HoldsEveryToken) {
  const TokenTrie trie(Mini());
  Grammar grammar;
  const uint32_t any = grammar.Text(grammar.AddAutomaton(ByteAutomaton::AnyBytes()));
  ASSERT_TRUE(grammar.Finish(any));
  GrammarStates states(grammar);
  GrammarStates::Id state = states.start();
  TokenMask mask(Mini().vocab_size());
  trie.Walk(states, &state, &mask);
  EXPECT_EQ(mask.Count(), Mini().num_ranks());
  EXPECT_LE(trie.memory_bytes(), TokenTrie::EstimateBytes(Mini()));
}

}  // namespace
}  // namespace thimble
