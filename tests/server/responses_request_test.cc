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

std::string Input(const std::string& items, const std::string& more = {}) {
  return R"({"input": [)" + items + "]" + (more.empty() ? "" : ", " + more) + "}";
}
constexpr const char* kUserGo = R"({"role": "user", "content": "go"})";

TEST(ResponsesRequestReaderTest, TakesTheSpellingsOfNoLimit) {
  const auto request =
      ReadRequest(Api::kResponses, Input(kUserGo, R"("max_output_tokens": -1, "temperature": null,
          "instructions": null, "tools": [], "tool_choice": "auto", "text": null, "include": ["reasoning.encrypted_content"],
          "reasoning": null, "store": false, "truncation": "auto", "parallel_tool_calls": false,
          "previous_response_id": null, "background": false, "prompt_cache_key": "k",
          "client_metadata": {}, "top_logprobs": 0, "seed": 3.0)"));
  EXPECT_GT(request.job.max_tokens, 1000u);
  EXPECT_EQ(request.job.sampling.seed, 3u);
  EXPECT_THAT(request.notes, IsEmpty());
  EXPECT_EQ(
      ReadRequest(Api::kResponses, Input(kUserGo, R"("max_output_tokens": 8.0)")).job.max_tokens,
      8u);
}

TEST(ResponsesRequestReaderTest, ReadsItemsOfEveryKindOfCall) {
  const auto request = ReadRequest(Api::kResponses, Input(std::string(kUserGo) + R"(,
      {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"},
      {"type": "custom_tool_call_output", "call_id": "c", "output": "patched"},
      {"type": "local_shell_call", "call_id": "l", "action": {"type": "exec", "command": ["ls"]}},
      {"type": "local_shell_call_output", "call_id": "l", "output": "a b"},
      {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}},
      {"type": "mcp_call", "id": "m", "name": "ask", "arguments": "{}", "output": "told"},
      {"type": "computer_call", "call_id": "k", "action": {"type": "screenshot"}},
      {"type": "computer_call_output", "call_id": "k", "output": {"type": "computer_screenshot",
        "image_url": "data:"}},
      {"type": "compaction", "encrypted_content": "x"},)" +
                                                          kUserGo));
  const std::string prompt = RequestTokenizer().Decode(request.job.prompt);
  EXPECT_THAT(prompt, HasSubstr("call tool=\"apply_patch\" index=\"1\""));
  EXPECT_THAT(prompt, HasSubstr("key=\"input\" type=\"string\"<|sep|>*** Begin<"));
  EXPECT_THAT(prompt, HasSubstr("tool=\"apply_patch\" index=\"1\"<|sep|>patched<"));
  EXPECT_THAT(prompt, HasSubstr("tool=\"local_shell\" index=\"1\"<|sep|>a b<"));
  EXPECT_THAT(prompt, HasSubstr("call tool=\"web_search\""));
  EXPECT_THAT(prompt, HasSubstr("tool=\"ask\" index=\"1\"<|sep|>told<"));
  EXPECT_THAT(prompt, HasSubstr("[an image that this model cannot see]"));
  EXPECT_THAT(request.notes, ElementsAre(HasSubstr("an image"), HasSubstr("compaction")));
}

TEST(ResponsesRequestReaderTest, TakesBackCallsHoweverTheyAreSpelled) {
  const auto prompt = [](const std::string& arguments) {
    return PromptOf(Api::kResponses, Input(std::string(kUserGo) + R"(, {"type": "function_call",
        "call_id": "a", "name": "f")" + arguments +
                                           R"(}, {"type": "function_call_output",
        "call_id": "a", "output": [{"type": "input_text", "text": "done"}]})"));
  };
  for (const char* none : {"", R"(, "arguments": "")", R"(, "arguments": "null")"}) {
    EXPECT_THAT(prompt(none), HasSubstr("index=\"1\"<|sep|><|close|>call")) << none;
  }
  for (const char* raw : {R"("[1]")", R"("\"x\"")", R"("{oh")"}) {
    EXPECT_THAT(prompt(std::string(", \"arguments\": ") + raw), HasSubstr("<|open|>json")) << raw;
  }
  EXPECT_THAT(PromptOf(Api::kResponses, Input(R"({"type": "function_call_output", "call_id": "z",
                  "output": "late"})")),
              HasSubstr("<|sep|>late<"));
  EXPECT_THAT(RefusalOf(Api::kResponses, Input(R"({"type": "function_call_output"})")),
              HasSubstr("input[0].call_id"));
  EXPECT_THAT(RefusalOf(Api::kResponses, Input(R"({"type": "function_call"})")),
              HasSubstr("input[0].name"));
}

TEST(ResponsesRequestReaderTest, RefusesWhatWouldNeedAStore) {
  EXPECT_THAT(RefusalOf(Api::kResponses, Input(R"({"type": "item_reference", "id": "i"})")),
              HasSubstr("input[0]: items are not stored"));
  for (const char* field : {R"("previous_response_id": "r")", R"("conversation": "c")",
                            R"("background": true)", R"("prompt": {"id": "p"})"}) {
    EXPECT_THAT(RefusalOf(Api::kResponses, Input(kUserGo, field)), HasSubstr("stored")) << field;
  }
  EXPECT_THAT(ReadRequest(Api::kResponses, Input(kUserGo, R"("store": true)")).notes,
              ElementsAre(HasSubstr("store")));
  EXPECT_THAT(RefusalOf(Api::kResponses, Input(kUserGo, R"("top_logprobs": 3)")),
              HasSubstr("top_logprobs"));
  EXPECT_THAT(RefusalOf(Api::kResponses, Input(kUserGo, R"("max_tokens": 3)")),
              HasSubstr("max_output_tokens"));
}

TEST(ResponsesRequestReaderTest, ReadsToolsAndTheirChoice) {
  const auto request = ReadRequest(Api::kResponses, Input(kUserGo, R"("tools": [
      {"type": "function", "name": "1st", "parameters": {}, "strict": true},
      {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
      {"type": "web_search"}], "tool_choice": {"type": "allowed_tools", "mode": "required",
      "tools": [{"type": "function", "name": "1st"}]})"));
  const std::string prompt = RequestTokenizer().Decode(request.job.prompt);
  EXPECT_THAT(prompt, HasSubstr(R"([{"function":{"name":"1st","parameters":{}},)"));
  EXPECT_THAT(prompt, HasSubstr("tool_choice=required"));
  EXPECT_THAT(request.notes, ElementsAre(HasSubstr("apply_patch"), HasSubstr("web_search")));
  EXPECT_THAT(
      RefusalOf(Api::kResponses, Input(kUserGo, R"("tool_choice": {"type": "web_search"})")),
      HasSubstr("tool_choice"));
}

TEST(ResponsesRequestReaderTest, ContinuesAnAnswerThatIsNotWhole) {
  const std::string user = std::string(kUserGo) + ", ";
  const auto prompt = [&](const std::string& status) {
    return PromptOf(Api::kResponses, Input(user + R"({"type": "message", "role": "assistant")" +
                                           status + R"(, "content": [{"type": "output_text",
        "text": "It is"}]})"));
  };
  EXPECT_THAT(prompt(""), EndsWith("<|open|>response<|sep|>It is"));
  EXPECT_THAT(prompt(R"(, "status": "incomplete")"), EndsWith("It is"));
  EXPECT_THAT(prompt(R"(, "status": "completed")"), EndsWith("<|open|>think<|sep|>"));
}

TEST(ResponsesRequestReaderTest, AnImageInTheHistoryIsAText) {
  const std::string image = R"({"role": "user", "content": [{"type": "input_image",
      "image_url": "data:"}]})";
  EXPECT_THAT(RefusalOf(Api::kResponses, Input(image)), HasSubstr("vision is not built yet"));
  EXPECT_THAT(PromptOf(Api::kResponses,
                       Input(image + R"(, {"role": "assistant", "content": "?"},)" + kUserGo)),
              HasSubstr("[an image that this model cannot see]"));
  EXPECT_THAT(PromptOf(Api::kResponses, Input(R"({"role": "user", "content": [
      {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGk="},
      {"type": "input_file", "file_id": "f"}]})")),
              HasSubstr("a.txt\nhi[a file that this model cannot read]"));
}

TEST(ResponsesRequestReaderTest, InputMayBeOneItemAndInstructionsItems) {
  EXPECT_THAT(PromptOf(Api::kResponses, R"({"input": {"role": "user", "content": "go"}})"),
              HasSubstr("role=\"user\"<|sep|>go<"));
  EXPECT_THAT(
      ReadRequest(Api::kResponses, Input(kUserGo, R"("include": ["file_search_call.results"])"))
          .notes,
      ElementsAre(HasSubstr("include")));
  EXPECT_THAT(PromptOf(Api::kResponses, Input(kUserGo, R"("instructions": [
                  {"role": "developer", "content": "Be brief."}])")),
              HasSubstr("role=\"system\"<|sep|>Be brief.<"));
  EXPECT_THAT(ReadRequest(Api::kResponses, Input(kUserGo, R"("text": {"verbosity": "low"})")).notes,
              ElementsAre(HasSubstr("verbosity")));
}

}  // namespace
}  // namespace thimble::server
