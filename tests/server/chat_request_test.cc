#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/api.h"
#include "server/request_reading.h"

namespace thimble::server {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string Chat(const std::string& messages, const std::string& more = {}) {
  return R"({"messages": [)" + messages + "]" + (more.empty() ? "" : ", " + more) + "}";
}
std::string HelloAnd(const std::string& more) {
  return Chat(R"({"role": "user", "content": "Hello"})", more);
}
std::string RefusalOfHelloAnd(const std::string& more) {
  return RefusalOf(Api::kChat, HelloAnd(more));
}

constexpr const char* kTwoFunctions = R"("tools": [
    {"type": "function", "function": {"name": "f"}},
    {"type": "function", "function": {"name": "g"}}])";

// Minus one, null, an empty list and a whole number written with a point mean what they say.
TEST(ChatRequestReaderTest, TakesTheSpellingsOfNoLimit) {
  const size_t room = ReadRequest(Api::kChat, HelloAnd("\"n\": null")).job.max_tokens;
  for (const char* none : {R"("max_tokens": -1)", R"("max_tokens": null)", R"("max_tokens": -1.0)",
                           R"("max_completion_tokens": -1)", R"("max_tokens": 1e300)"}) {
    EXPECT_EQ(ReadRequest(Api::kChat, HelloAnd(none)).job.max_tokens, room) << none;
  }
  const auto request = ReadRequest(Api::kChat, HelloAnd(R"("max_tokens": 8.0, "top_k": -1,
      "seed": -1, "n": 1.0, "stop": null, "temperature": null, "top_p": 1, "tools": [],
      "tool_choice": null, "response_format": null, "logprobs": null, "logit_bias": null)"));
  EXPECT_EQ(request.job.max_tokens, 8u);
  EXPECT_EQ(request.job.sampling.top_k, 0u);
  EXPECT_THAT(request.stops, IsEmpty());
  for (const char* none : {R"("stop": "")", R"("stop": [])", R"("stop": [""])"}) {
    EXPECT_THAT(ReadRequest(Api::kChat, HelloAnd(none)).stops, IsEmpty()) << none;
  }
  const auto seed = [](const char* field) {
    return ReadRequest(Api::kChat, HelloAnd(field)).job.sampling.seed;
  };
  EXPECT_NE(seed("\"seed\": -1"), seed("\"seed\": -1"));
  EXPECT_EQ(seed("\"seed\": 5.0"), 5u);
  EXPECT_EQ(seed("\"seed\": 18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(ReadRequest(Api::kChat, HelloAnd("\"top_k\": 40.0")).job.sampling.top_k, 40u);
}

TEST(ChatRequestReaderTest, RefusesWhatMeansNothingWithTheRange) {
  EXPECT_THAT(
      RefusalOfHelloAnd("\"max_tokens\": 0"),
      HasSubstr("max_tokens: expected an integer of at least 1, or -1 for no limit, found 0"));
  EXPECT_THAT(RefusalOfHelloAnd("\"max_tokens\": -7"), HasSubstr("found -7"));
  EXPECT_THAT(RefusalOfHelloAnd("\"max_tokens\": 8.5"), HasSubstr("found 8.5"));
  EXPECT_THAT(RefusalOfHelloAnd("\"top_k\": -2"), HasSubstr("top_k"));
  EXPECT_THAT(RefusalOfHelloAnd("\"temperature\": 2.5"),
              HasSubstr("temperature: expected a number from 0 to 2, found 2.5"));
  EXPECT_THAT(RefusalOfHelloAnd("\"seed\": 1.5"), HasSubstr("seed: expected an integer"));
  EXPECT_THAT(RefusalOfHelloAnd("\"n\": 17"), HasSubstr("n: expected"));
  EXPECT_THAT(RefusalOfHelloAnd("\"stop\": [1]"), HasSubstr("stop"));
}

TEST(ChatRequestReaderTest, ReadsPenaltiesAndBiases) {
  const auto sampling = ReadRequest(Api::kChat, HelloAnd(R"("frequency_penalty": 0.5,
      "presence_penalty": -1, "repetition_penalty": 1.2, "min_p": 0.1,
      "logit_bias": {"5": -100, "6": 2.5})"))
                            .job.sampling;
  EXPECT_EQ(sampling.frequency_penalty, 0.5F);
  EXPECT_EQ(sampling.presence_penalty, -1.0F);
  EXPECT_EQ(sampling.repeat_penalty, 1.2F);
  EXPECT_EQ(sampling.min_p, 0.1F);
  ASSERT_EQ(sampling.logit_bias.size(), 2u);
  EXPECT_EQ(sampling.logit_bias[0].id, 5u);
  EXPECT_EQ(sampling.logit_bias[0].bias, -100.0F);
  EXPECT_EQ(
      ReadRequest(Api::kChat, HelloAnd(R"("logit_bias": [[5, 1]])")).job.sampling.logit_bias[0].id,
      5u);
  for (const char* wrong :
       {R"({"x": 1})", R"({"99999999": 1})", R"({"5": 101})", R"({"5": "a"})", R"([5])", "3"}) {
    EXPECT_THAT(RefusalOfHelloAnd(std::string("\"logit_bias\": ") + wrong), HasSubstr("logit_bias"))
        << wrong;
  }
  EXPECT_THAT(RefusalOfHelloAnd("\"frequency_penalty\": 2.1"), HasSubstr("frequency_penalty"));
}

TEST(ChatRequestReaderTest, StopsAtTokensOfTheRequest) {
  const auto request = ReadRequest(Api::kChat, HelloAnd("\"stop_token_ids\": [5, 6.0]"));
  EXPECT_THAT(request.stop_token_ids, ElementsAre(5, 6));
  EXPECT_THAT(request.job.stop_ids, ElementsAre(7, 5, 6));
  EXPECT_THAT(RefusalOfHelloAnd("\"stop_token_ids\": [-1]"), HasSubstr("stop_token_ids"));
  EXPECT_THAT(RefusalOfHelloAnd("\"stop_token_ids\": 5"), HasSubstr("stop_token_ids"));
}

// What would change the answer is refused by its name, unless it asks for what is done anyway.
TEST(ChatRequestReaderTest, RefusesFieldsThatItCannotHonourByName) {
  const std::pair<const char*, const char*> refused[] = {{"best_of", "2"},
                                                         {"min_tokens", "5"},
                                                         {"ignore_eos", "true"},
                                                         {"typical_p", "0.9"},
                                                         {"guided_regex", "\"a+\""},
                                                         {"guided_choice", "[\"a\"]"},
                                                         {"guided_grammar", "\"x\""},
                                                         {"modalities", "[\"audio\"]"},
                                                         {"suffix", "\"x\""},
                                                         {"audio", "{\"voice\": \"a\"}"},
                                                         {"use_beam_search", "true"},
                                                         {"mirostat", "2"},
                                                         {"chat_template", "\"x\""},
                                                         {"skip_special_tokens", "false"},
                                                         {"max_new_tokens", "5"},
                                                         {"max_output_tokens", "5"},
                                                         {"previous_response_id", "\"r\""},
                                                         {"background", "true"}};
  for (const auto& [name, value] : refused) {
    const std::string field = std::string("\"") + name + "\": ";
    EXPECT_THAT(RefusalOfHelloAnd(field + value), testing::StartsWith(std::string(name) + ": "));
    EXPECT_EQ(RefusalOfHelloAnd(field + "null"), "") << name;
  }
  const auto neutral = ReadRequest(Api::kChat, HelloAnd(R"("best_of": 1.0, "min_tokens": 0,
      "ignore_eos": false, "typical_p": 1.0, "modalities": ["text"], "suffix": "",
      "guided_choice": [], "skip_special_tokens": true, "documents": [], "background": false)"));
  EXPECT_THAT(neutral.notes, IsEmpty());
}

TEST(ChatRequestReaderTest, SaysWhatHadNoEffect) {
  EXPECT_THAT(ReadRequest(Api::kChat, HelloAnd(R"("user": "me", "metadata": {"a": "b"},
      "service_tier": "auto", "store": false, "parallel_tool_calls": true,
      "prompt_cache_key": "k", "stream_options": {"include_usage": true})"))
                  .notes,
              IsEmpty());
  const auto notes = ReadRequest(Api::kChat, HelloAnd(R"("store": true, "verbosity": "low",
      "repeat_last_n": 64, "frobnicate\r\nX-Evil: 1": true, "web_search_options": {})"))
                         .notes;
  const std::string line = NoteHeader(notes);
  EXPECT_THAT(line, HasSubstr("store: nothing is stored"));
  EXPECT_THAT(line, HasSubstr("verbosity"));
  EXPECT_THAT(line, HasSubstr("web_search_options"));
  EXPECT_THAT(line, HasSubstr("not known and ignored: repeat_last_n, frobnicate"));
  EXPECT_THAT(line, Not(testing::ContainsRegex("[\r\n]")));
  std::string many;
  for (int i = 0; i < 50; ++i) many += R"("unknown)" + std::to_string(i) + R"(": 1, )";
  many += R"("user": "")";
  EXPECT_THAT(NoteHeader(ReadRequest(Api::kChat, HelloAnd(many)).notes), HasSubstr("and 42 more"));
  EXPECT_LE(NoteHeader({std::string(5000, 'x')}).size(), 1000u);
}

TEST(ChatRequestReaderTest, NotesWhatOfASchemaIsNotBoundAndRefusesContradictions) {
  const auto format = [](const std::string& schema) {
    return R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": )" +
           schema + "}}";
  };
  EXPECT_THAT(
      ReadRequest(Api::kChat, HelloAnd(format(R"({"type": "array", "uniqueItems": true})"))).notes,
      ElementsAre("not enforced: response_format.json_schema.uniqueItems"));
  EXPECT_THAT(
      ReadRequest(Api::kChat, HelloAnd(format(R"({"type": "integer", "minimum": 3})"))).notes,
      IsEmpty());
  EXPECT_THAT(RefusalOfHelloAnd(format(R"({"type": "integer", "minimum": 3, "maximum": 1})")),
              HasSubstr("response_format.json_schema.minimum"));
}

TEST(ChatRequestReaderTest, BindsCallsThatAreRequired) {
  const std::string tools = kTwoFunctions;
  const auto filter = [&](const std::string& more) {
    return ReadRequest(Api::kChat, HelloAnd(tools + more)).job.filter;
  };
  EXPECT_EQ(filter(""), nullptr);
  EXPECT_NE(filter(R"(, "tool_choice": "required")"), nullptr);
  EXPECT_NE(filter(R"(, "tool_choice": {"type": "function", "function": {"name": "f"}})"), nullptr);
  EXPECT_NE(filter(R"(, "parallel_tool_calls": false)"), nullptr);
}

TEST(ChatRequestReaderTest, ReadsSchemasWhereverServersTakeThem) {
  for (const char* field :
       {R"("guided_json": {"type": "object"})", R"("guided_json": "{\"type\": \"object\"}")",
        R"("response_format": {"type": "json_object", "schema": {"type": "object"}})",
        R"("response_format": {"type": "json_schema", "schema": {"type": "object"}})",
        R"("structured_outputs": {"json": {"type": "object"}})",
        R"("json_schema": {"type": "object"})"}) {
    const auto request = ReadRequest(Api::kChat, HelloAnd(field));
    EXPECT_NE(request.job.filter, nullptr) << field;
    EXPECT_THAT(RequestTokenizer().Decode(request.job.prompt),
                HasSubstr("response_format=json_schema"))
        << field;
  }
  EXPECT_THAT(RefusalOfHelloAnd(R"("guided_json": 3)"), HasSubstr("guided_json"));
  EXPECT_THAT(RefusalOfHelloAnd(R"("guided_json": "{oh")"), HasSubstr("guided_json"));
  EXPECT_THAT(RefusalOfHelloAnd(R"("structured_outputs": {"regex": "a"})"),
              HasSubstr("structured_outputs.regex"));
  EXPECT_THAT(RefusalOfHelloAnd(R"("response_format": {"type": "grammar"})"),
              HasSubstr("response_format.type"));
}

// The markup that the prompt of HelloAnd(more) ends with.
bool Thinks(const std::string& more) {
  return PromptOf(Api::kChat, HelloAnd(more)).ends_with("<|open|>think<|sep|>");
}
TEST(ChatRequestReaderTest, ThinksAsTheRequestSaysInAnyWay) {
  for (const char* off :
       {R"("reasoning": {"enabled": false})", R"("reasoning": {"effort": "none"})",
        R"("reasoning": {"max_tokens": 0})", R"("enable_thinking": false)",
        R"("thinking_budget": 0)", R"("reasoning_effort": "minimal")", R"("thinking": false)",
        R"("thinking": {"type": "disabled"})", R"("chat_template_kwargs": {"thinking": false})",
        R"("enable_thinking": false, "reasoning_effort": "high")"}) {
    EXPECT_FALSE(Thinks(off)) << off;
  }
  for (const char* on :
       {R"("reasoning": {})", R"("reasoning": {"enabled": true})", R"("enable_thinking": true)",
        R"("reasoning": {"max_tokens": 1000})", R"("reasoning": null)", R"("thinking": {})"}) {
    EXPECT_TRUE(Thinks(on)) << on;
  }
  EXPECT_THAT(PromptOf(Api::kChat, HelloAnd(R"("reasoning": {"effort": "high"})")),
              HasSubstr("thinking_effort=high"));
  EXPECT_TRUE(
      ReadRequest(Api::kChat, HelloAnd(R"("reasoning": {"exclude": true})")).hide_reasoning);
  EXPECT_TRUE(ReadRequest(Api::kChat, HelloAnd(R"("include_reasoning": false)")).hide_reasoning);
  EXPECT_THAT(ReadRequest(Api::kChat, HelloAnd(R"("thinking_budget": 100)")).notes,
              ElementsAre(HasSubstr("thinking_budget")));
  EXPECT_THAT(RefusalOfHelloAnd(R"("reasoning": "high")"), HasSubstr("reasoning"));
}

TEST(ChatRequestReaderTest, ReadsTheChoiceOfTools) {
  const auto prompt = [](const std::string& choice) {
    return PromptOf(Api::kChat,
                    HelloAnd(std::string(kTwoFunctions) + R"(, "tool_choice": )" + choice));
  };
  for (const char* required :
       {R"("required")", R"("any")", R"({"type": "function", "function": {"name": "g"}})",
        R"({"type": "function", "name": "g"})",
        R"({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
            {"type": "function", "function": {"name": "f"}}]}})"}) {
    EXPECT_THAT(prompt(required), HasSubstr("tool_choice=required")) << required;
  }
  EXPECT_THAT(prompt(R"("none")"), HasSubstr("tool_choice=none"));
  EXPECT_THAT(prompt(R"("auto")"), Not(HasSubstr("tool_choice=")));
  EXPECT_THAT(prompt(R"("")"), Not(HasSubstr("tool_choice=")));
  const auto refusal = [](const std::string& choice) {
    return RefusalOfHelloAnd(std::string(kTwoFunctions) + R"(, "tool_choice": )" + choice);
  };
  EXPECT_THAT(refusal(R"({"type": "function", "function": {"name": "h"}})"),
              HasSubstr("tool_choice: expected names of tools that are offered, found h"));
  EXPECT_THAT(refusal(R"("maybe")"), HasSubstr("tool_choice"));
  EXPECT_THAT(refusal("3"), HasSubstr("tool_choice"));
  EXPECT_THAT(RefusalOfHelloAnd(R"("tool_choice": "required")"), HasSubstr("tools"));
}

TEST(ChatRequestReaderTest, OffersFunctionsInAnySpellingAndNotesOtherTools) {
  const auto request = ReadRequest(Api::kChat, HelloAnd(R"("tools": [
      {"function": {"name": "2fast"}}, {"type": "function", "name": "mcp.x/y", "parameters": {}},
      {"type": "web_search"}, {"type": "custom", "custom": {"name": "c"}}])"));
  const std::string prompt = RequestTokenizer().Decode(request.job.prompt);
  EXPECT_THAT(prompt, HasSubstr(R"([{"function":{"name":"2fast"},"type":"function"},)"
                                R"({"function":{"name":"mcp.x/y","parameters":{}},)"
                                R"("type":"function"}])"));
  EXPECT_THAT(request.notes, ElementsAre(HasSubstr("web_search"), HasSubstr("custom")));
  for (const char* wrong : {R"([null])", R"([{"type": "function"}])", R"([{"type": 3}])", R"({})",
                            R"([{"function": {"name": "a b"}}])", R"([{"function": {"name": ""}}])",
                            R"([{"function": {"name": "f"}}, {"function": {"name": "f"}}])"}) {
    EXPECT_THAT(RefusalOfHelloAnd(std::string("\"tools\": ") + wrong), HasSubstr("tools")) << wrong;
  }
}

TEST(ChatRequestReaderTest, ReadsTheOlderFunctions) {
  const auto request = ReadRequest(
      Api::kChat,
      Chat(R"({"role": "user", "content": "go"},
              {"role": "assistant", "content": null, "function_call":
                {"name": "f", "arguments": "{\"a\": 1}"}},
              {"role": "function", "name": "f", "content": "done"})",
           R"("functions": [{"name": "f", "parameters": {}}], "function_call": {"name": "f"})"));
  EXPECT_TRUE(request.legacy_functions);
  const std::string prompt = RequestTokenizer().Decode(request.job.prompt);
  EXPECT_THAT(prompt, HasSubstr(R"({"function":{"name":"f","parameters":{}},"type":"function"})"));
  EXPECT_THAT(prompt, HasSubstr("role=\"tool\" tool=\"f\" index=\"1\"<|sep|>done<"));
  EXPECT_THAT(prompt, HasSubstr("key=\"a\" type=\"number\"<|sep|>1<"));
}

// Whatever the server sends, or a client makes of it, is taken back.
TEST(ChatRequestReaderTest, TakesBackCallsHoweverTheyAreSpelled) {
  const auto prompt = [](const std::string& arguments) {
    return PromptOf(Api::kChat, Chat(R"({"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function",
          "function": {"name": "f")" +
                                     arguments + R"(}}]},
        {"role": "tool", "tool_call_id": "a", "content": "done"})"));
  };
  for (const char* none : {"", R"(, "arguments": null)", R"(, "arguments": "")",
                           R"(, "arguments": "null")", R"(, "arguments": "{}")"}) {
    EXPECT_THAT(prompt(none), HasSubstr("index=\"1\"<|sep|><|close|>call")) << none;
  }
  for (const char* raw : {R"("[1]")", R"([1])", R"("\"x\"")", R"("{oh")", R"("3")", "true"}) {
    EXPECT_THAT(prompt(std::string(", \"arguments\": ") + raw), HasSubstr("<|open|>json")) << raw;
  }
}

TEST(ChatRequestReaderTest, TakesBackConversationsThatWereCut) {
  const std::string call = R"({"role": "assistant", "content": null, "tool_calls": [
      {"id": "a", "function": {"name": "f", "arguments": "{}"}},
      {"id": "a", "function": {"name": "g", "arguments": "{}"}}]})";
  const std::string result = R"({"role": "tool", "tool_call_id": "a", "content":
      [{"type": "text", "text": "done"}, "!"]})";
  const std::string user = R"({"role": "user", "content": "go"})";
  // A result without its call, twice, and one of an earlier call.
  const auto orphan = ReadRequest(Api::kChat, Chat(result + "," + user));
  EXPECT_THAT(RequestTokenizer().Decode(orphan.job.prompt),
              HasSubstr("tool=\"unknown\" index=\"1\"<|sep|>done!<"));
  EXPECT_THAT(orphan.notes, ElementsAre(HasSubstr("belongs to no call")));
  const std::string late = PromptOf(
      Api::kChat, Chat(call + R"(, {"role": "assistant", "content": ""},)" + result + "," + user));
  EXPECT_THAT(late, HasSubstr("tool=\"f\" index=\"1\"<|sep|>done!<"));
  PromptOf(Api::kChat, Chat(call + "," + result + "," + result + "," + result));
  // Empty and repeated messages.
  PromptOf(Api::kChat, Chat(R"({"role": "user", "content": ""}, {"role": "user"},
      {"role": "assistant"}, {"role": "assistant", "content": []}, {"role": "user", "content": null},
      {"role": "system", "content": "x"}, {"role": "developer", "content": "y"})"));
  PromptOf(Api::kChat, Chat(user + "," + call));
  EXPECT_THAT(RefusalOf(Api::kChat, Chat(R"({"role": "tool", "content": "x"})")),
              HasSubstr("messages[0].tool_call_id"));
}

TEST(ChatRequestReaderTest, HalfACharacterIsReplaced) {
  EXPECT_THAT(PromptOf(Api::kChat, Chat(R"({"role": "user", "content": "a\ud83d"})")),
              HasSubstr("a\ufffd"));
}

TEST(ChatRequestReaderTest, AnImageInTheHistoryIsAText) {
  const std::string image =
      R"({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})";
  const std::string seen = R"({"role": "user", "content": [)" + image + R"(, {"type": "text",
      "text": "What is it?"}]})";
  const auto request = ReadRequest(
      Api::kChat, Chat(seen + R"(, {"role": "assistant", "content": "A cat."}, {"role": "tool",
          "tool_call_id": "a", "content": [)" +
                       image + R"(, {"type": "input_audio"}]},
          {"role": "user", "content": "And?"})"));
  const std::string prompt = RequestTokenizer().Decode(request.job.prompt);
  EXPECT_THAT(prompt, HasSubstr("[an image that this model cannot see]What is it?"));
  EXPECT_THAT(prompt, HasSubstr("[a recording that this model cannot hear]"));
  EXPECT_EQ(std::ranges::count_if(
                request.notes,
                [](const std::string& note) { return note.find("image") != std::string::npos; }),
            1);
  // Nothing but an image to answer; a text before it would do.
  const std::string only = R"({"role": "user", "content": [)" + image + R"(, {"type": "text",
      "text": " "}]})";
  EXPECT_THAT(RefusalOf(Api::kChat, Chat(only)), HasSubstr("vision is not built yet"));
  EXPECT_THAT(
      RefusalOf(Api::kChat, Chat(seen + R"(, {"role": "assistant", "content": "A cat."},)" + only)),
      HasSubstr("vision is not built yet"));
  EXPECT_EQ(RefusalOf(Api::kChat, Chat(R"({"role": "user", "content": "Look:"},)" + only)), "");
}

TEST(ChatRequestReaderTest, AnAnswerAtTheEndIsContinued) {
  const std::string user = R"({"role": "user", "content": "go"})";
  const auto prompt = [&](const std::string& answer, const std::string& more = {}) {
    return PromptOf(Api::kChat, Chat(user + R"(, {"role": "assistant", )" + answer + "}", more));
  };
  const auto begun = EndsWith("<|open|>response<|sep|>It is");
  EXPECT_THAT(prompt(R"("content": "It is")"), begun);
  EXPECT_THAT(prompt(R"("content": "It is", "prefix": true)"), begun);
  EXPECT_THAT(prompt(R"("content": "It is", "partial": true)"), begun);
  EXPECT_THAT(prompt(R"("content": "It is")",
                     R"("continue_final_message": true, "add_generation_prompt": false)"),
              begun);
  EXPECT_THAT(prompt(R"("reasoning_content": "Hm")"), EndsWith("<|open|>think<|sep|>Hm"));
  // An answer of its own: said so, nothing to continue, or calls that nobody answered.
  const auto anew = EndsWith("role=\"assistant\"<|sep|><|open|>think<|sep|>");
  EXPECT_THAT(prompt(R"("content": "It is")", R"("add_generation_prompt": true)"), anew);
  EXPECT_THAT(prompt(R"("content": "It is")", R"("continue_final_message": false)"), anew);
  EXPECT_THAT(prompt(R"("content": " ")"), anew);
  EXPECT_THAT(prompt(R"("content": "x", "tool_calls": [{"function": {"name": "f"}}])"), anew);

  const auto request =
      ReadRequest(Api::kChat, Chat(user + R"(, {"role": "assistant", "content": "It is"})"));
  EXPECT_FALSE(request.thinking);
  EXPECT_GT(request.job.cut_at, 0u);
  EXPECT_THAT(RefusalOf(Api::kChat, Chat(user, R"("continue_final_message": true)")),
              HasSubstr("continue_final_message"));
  EXPECT_THAT(RefusalOf(Api::kChat, Chat(user, R"("add_generation_prompt": false)")),
              HasSubstr("add_generation_prompt"));
}

// The beginning of JSON binds the rest.
TEST(ChatRequestReaderTest, WhatIsContinuedFitsTheFormat) {
  const auto body = [](const std::string& answer) {
    return Chat(
        R"({"role": "user", "content": "go"}, {"role": "assistant", "content": ")" + answer + "\"}",
        R"("response_format": {"type": "json_object"})");
  };
  const auto request = ReadRequest(Api::kChat, body(R"({\"a\":)"));
  ASSERT_NE(request.job.filter, nullptr);
  const auto first = [](const char* text) {
    std::vector<TokenId> ids;
    RequestTokenizer().Encode(text, &ids);
    return ids.front();
  };
  EXPECT_TRUE(request.job.filter->Allows(first("1")));
  EXPECT_FALSE(request.job.filter->Allows(first("}")));
  EXPECT_THAT(RefusalOf(Api::kChat, body("Sure:")), HasSubstr("is not the beginning of"));
}

TEST(ChatRequestReaderTest, LeavesAttributionOutOfSystemTexts) {
  const auto body = [](const std::string& hash) {
    return Chat(R"({"role": "system", "content": "x-anthropic-billing-header: cc; cch=)" + hash +
                R"(;\nBe brief."}, {"role": "user", "content": "go"})");
  };
  EXPECT_EQ(PromptOf(Api::kChat, body("1a2b3")), PromptOf(Api::kChat, body("4c5d6")));
  EXPECT_THAT(PromptOf(Api::kChat, body("1a2b3")), HasSubstr("role=\"system\"<|sep|>Be brief."));
}

}  // namespace
}  // namespace thimble::server
