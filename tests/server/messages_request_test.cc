#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/api.h"
#include "server/request_reading.h"

namespace thimble::server {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string Messages(const std::string& messages, const std::string& more = {}) {
  return R"({"max_tokens": 5, "messages": [)" + messages + "]" + (more.empty() ? "" : ", " + more) +
         "}";
}
constexpr const char* kGo = R"({"role": "user", "content": "go"})";

// As Claude Code 2.1.197 begins, but for the length of its texts.
TEST(MessagesRequestReaderTest, TakesWhatClaudeCodeSends) {
  const auto body = [](const std::string& hash) {
    return R"({"model": "claude", "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.123; )" +
           hash +
           R"("}, {"type": "text", "text": "You are an agent.", "cache_control":
             {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [
          {"type": "text", "text": "<system-reminder>x</system-reminder>"},
          {"type": "text", "text": "Say hi", "cache_control": {"type": "ephemeral"}}]},
          {"role": "system", "content": "Available agent types: none"}],
        "tools": [{"name": "Bash", "description": "runs", "input_schema": {"type": "object"}}],
        "metadata": {"user_id": "{}"}, "max_tokens": 32000, "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"}, "stream": true})";
  };
  const auto request = ReadRequest(Api::kMessages, body("cch=00001;"));
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.thinking);
  EXPECT_EQ(request.job.prompt, ReadRequest(Api::kMessages, body("cch=abcde;")).job.prompt);
  const std::string prompt = RequestTokenizer().Decode(request.job.prompt);
  EXPECT_THAT(prompt, HasSubstr("role=\"system\"<|sep|>You are an agent.<"));
  EXPECT_THAT(prompt, HasSubstr("role=\"system\"<|sep|>Available agent types: none<"));
  EXPECT_THAT(prompt, HasSubstr("thinking_effort=high"));
  EXPECT_THAT(prompt, Not(HasSubstr("billing")));
  EXPECT_THAT(request.notes, ElementsAre(HasSubstr("x-anthropic-billing-header")));
}

TEST(MessagesRequestReaderTest, TakesTheSpellingsOfNoLimit) {
  const auto most = [](const std::string& value) {
    return ReadRequest(Api::kMessages,
                       R"({"max_tokens": )" + value + R"(, "messages": [)" + kGo + "]}")
        .job.max_tokens;
  };
  EXPECT_GT(most("-1"), 1000u);
  EXPECT_EQ(most("null"), most("-1"));
  EXPECT_EQ(most("8.0"), 8u);
  EXPECT_EQ(most("0"), 0u);  // only the prompt
  EXPECT_THAT(RefusalOf(Api::kMessages, R"({"max_tokens": -3, "messages": [{"role": "user",
              "content": "x"}]})"),
              HasSubstr("max_tokens"));
  EXPECT_THAT(RefusalOf(Api::kMessages, R"({"messages": [{"role": "user", "content": "x"}]})"),
              HasSubstr("max_tokens"));
  const auto request = ReadRequest(
      Api::kMessages, Messages(kGo, R"("top_k": -1, "stop_sequences": null, "temperature": 1.0,
          "tool_choice": null, "tools": null, "system": null, "thinking": null)"));
  EXPECT_EQ(request.job.sampling.top_k, 0u);
  EXPECT_THAT(request.notes, IsEmpty());
  EXPECT_THAT(ReadRequest(Api::kMessages, Messages(kGo, R"("stop_sequences": ["a", ""])")).stops,
              ElementsAre("a"));
}

TEST(MessagesRequestReaderTest, ReadsDocumentsAndSearchResults) {
  const auto request = ReadRequest(Api::kMessages, Messages(R"({"role": "user", "content": [
      {"type": "document", "source": {"type": "text", "media_type": "text/plain",
        "data": "Grass is green."}, "title": "Facts", "citations": {"enabled": true}},
      {"type": "document", "source": {"type": "content", "content": [
        {"type": "text", "text": "Sky is blue."}]}},
      {"type": "document", "source": {"type": "base64", "media_type": "text/plain",
        "data": "U25vdyBpcyB3aGl0ZS4="}},
      {"type": "document", "source": {"type": "base64", "media_type": "application/pdf",
        "data": "JVBERi0="}},
      {"type": "search_result", "source": "https://a.example", "title": "Coal",
        "content": [{"type": "text", "text": "Coal is black."}]},
      {"type": "text", "text": "Which colour?"}]})"));
  const std::string prompt = RequestTokenizer().Decode(request.job.prompt);
  EXPECT_THAT(prompt, HasSubstr("Facts\nGrass is green."));
  EXPECT_THAT(prompt, HasSubstr("Sky is blue."));
  EXPECT_THAT(prompt, HasSubstr("Snow is white."));
  EXPECT_THAT(prompt, HasSubstr("[a document that this model cannot read]"));
  EXPECT_THAT(prompt, HasSubstr("Coal\nhttps://a.example\nCoal is black."));
  EXPECT_THAT(request.notes, ElementsAre(HasSubstr("citations"), HasSubstr("a document")));
}

TEST(MessagesRequestReaderTest, ReadsWhatOtherServersToolsLeft) {
  const std::string prompt = PromptOf(Api::kMessages, Messages(std::string(kGo) + R"(,
      {"role": "assistant", "content": [
        {"type": "text", "text": "I search."},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [
          {"type": "web_search_result", "title": "T", "url": "https://b.example",
           "encrypted_content": "EqgfCioIARgBIiQ3"}]},
        {"type": "text", "text": "Found.", "citations": [{"type": "web_search_result_location"}]},
        {"type": "mcp_tool_use", "id": "m", "name": "ask", "server_name": "y", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": true, "content": "no"}]},)" +
                                                               kGo));
  EXPECT_THAT(prompt, HasSubstr("<|open|>call tool=\"web_search\" index=\"1\""));
  EXPECT_THAT(prompt, HasSubstr("tool=\"web_search\" index=\"1\"<|sep|>T\nhttps://b.example<"));
  EXPECT_THAT(prompt, HasSubstr("tool=\"ask\" index=\"1\"<|sep|>Error: no<"));
  EXPECT_THAT(prompt, Not(HasSubstr("EqgfCioIARgBIiQ3")));
  EXPECT_LT(prompt.find("I search."), prompt.find("Found."));
}

TEST(MessagesRequestReaderTest, TakesBackCallsAndResultsHoweverTheyAre) {
  const auto prompt = [](const std::string& input, const std::string& result) {
    return PromptOf(Api::kMessages, Messages(std::string(kGo) + R"(,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": )" +
                                             input + R"(}]}, {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "t")" +
                                             result + "}]}"));
  };
  for (const char* input : {"null", "{}", "\"\""}) {
    EXPECT_THAT(prompt(input, ""), HasSubstr("index=\"1\"<|sep|><|close|>call")) << input;
  }
  EXPECT_THAT(prompt(R"("{\"a\": 1}")", ""), HasSubstr("key=\"a\" type=\"number\""));
  for (const char* input : {"[1]", "\"{oh\"", "3"}) {
    EXPECT_THAT(prompt(input, ""), HasSubstr("<|open|>json")) << input;
  }
  for (const char* empty :
       {"", R"(, "content": null)", R"(, "content": [])", R"(, "content": "")"}) {
    EXPECT_THAT(prompt("{}", empty), HasSubstr("tool=\"f\" index=\"1\"<|sep|><|close|>message"));
  }
  EXPECT_THAT(prompt("{}", R"(, "is_error": true)"), HasSubstr("<|sep|>Error<|close|>"));
  EXPECT_THAT(prompt("{}", R"(, "is_error": true, "content": "An error came")"),
              HasSubstr("<|sep|>An error came<|close|>"));
  EXPECT_THAT(prompt("{}", R"(, "content": [{"type": "image", "source": {}},
                                {"type": "tool_reference", "tool_name": "g"}])"),
              HasSubstr("[an image that this model cannot see]The tool g is available."));
  const auto orphan = ReadRequest(Api::kMessages, Messages(R"({"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "gone", "content": "late"}]})"));
  EXPECT_THAT(RequestTokenizer().Decode(orphan.job.prompt), HasSubstr("late"));
  EXPECT_THAT(orphan.notes, ElementsAre(HasSubstr("belongs to no call")));
}

TEST(MessagesRequestReaderTest, TakesEmptyAndRepeatedMessages) {
  PromptOf(Api::kMessages, Messages(R"({"role": "user", "content": ""},
      {"role": "user", "content": []}, {"role": "assistant", "content": ""},
      {"role": "assistant", "content": [{"type": "text", "text": ""}]},
      {"role": "assistant"}, {"role": "user", "content": null},
      {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]})"));
  EXPECT_THAT(RefusalOf(Api::kMessages, Messages("")), HasSubstr("messages"));
  EXPECT_THAT(RefusalOf(Api::kMessages, Messages(R"({"role": "cat", "content": "x"})")),
              HasSubstr("messages[0].role"));
  EXPECT_THAT(RefusalOf(Api::kMessages, Messages(R"({"role": "user", "content": 3})")),
              HasSubstr("messages[0].content"));
  EXPECT_THAT(
      RefusalOf(Api::kMessages, Messages(R"({"role": "user", "content": [{"type": "image"}]})")),
      HasSubstr("vision is not built yet"));
}

TEST(MessagesRequestReaderTest, OffersOnlyToolsThatTheModelCanCall) {
  const auto request = ReadRequest(Api::kMessages, Messages(kGo, R"("tools": [
        {"name": "9lives", "input_schema": {"type": "object"}, "cache_control": {}},
        {"type": "custom", "name": "g", "input_schema": {"type": "object"}, "defer_loading": true},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "bash_20250124", "name": "bash"}],
        "tool_choice": {"type": "tool", "name": "g", "disable_parallel_tool_use": true})"));
  const std::string prompt = RequestTokenizer().Decode(request.job.prompt);
  EXPECT_THAT(prompt,
              HasSubstr(R"([{"function":{"name":"9lives","parameters":{"type":"object"}},)"));
  EXPECT_THAT(prompt, Not(HasSubstr("web_search")));
  EXPECT_THAT(prompt, HasSubstr("tool_choice=required"));
  EXPECT_THAT(request.notes, ElementsAre(HasSubstr("web_search_20250305"), HasSubstr("bash")));
  EXPECT_THAT(RefusalOf(Api::kMessages, Messages(kGo, R"("tools": [{"name": "f"}],
                  "tool_choice": {"type": "tool", "name": "g"})")),
              HasSubstr("tool_choice"));
}

TEST(MessagesRequestReaderTest, AnAnswerAtTheEndIsContinued) {
  const std::string user = std::string(kGo) + ", ";
  EXPECT_THAT(PromptOf(Api::kMessages, Messages(user + R"({"role": "assistant", "content": "{"})")),
              EndsWith("<|open|>response<|sep|>{"));
  EXPECT_THAT(PromptOf(Api::kMessages, Messages(user + R"({"role": "assistant", "content": [
                  {"type": "thinking", "thinking": "Hm", "signature": ""},
                  {"type": "text", "text": "It is"}]})")),
              EndsWith("<|sep|>Hm<|close|>think<|sep|><|open|>response<|sep|>It is"));
  EXPECT_THAT(PromptOf(Api::kMessages, Messages(user + R"({"role": "assistant", "content": ""})")),
              EndsWith("<|open|>think<|sep|>"));
}

TEST(MessagesRequestReaderTest, RefusesFieldsThatItCannotHonourByName) {
  for (const char* name : {"mcp_servers", "container"}) {
    EXPECT_THAT(RefusalOf(Api::kMessages, Messages(kGo, "\"" + std::string(name) + "\": [{}]")),
                testing::StartsWith(name));
  }
  EXPECT_THAT(RefusalOf(Api::kMessages, Messages(kGo, R"("reasoning_effort": "low")")),
              HasSubstr("output_config.effort"));
  const auto request = ReadRequest(Api::kMessages, Messages(kGo, R"("service_tier": "auto",
      "anthropic_version": "x", "betas": ["y"], "thinking": {"type": "enabled",
      "budget_tokens": 2000}, "output_config": {"task_budget": {}},
      "context_management": {"edits": [{"type": "clear_tool_uses"}]})"));
  EXPECT_THAT(request.notes, ElementsAre(HasSubstr("budget_tokens"), HasSubstr("output_config"),
                                         HasSubstr("context_management")));
}

}  // namespace
}  // namespace thimble::server
