#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/answer_run.h"
#include "server/event_grammar.h"
#include "server/scripted_backend.h"

// The streams of all APIs, for each combination of what an answer may hold and how it may end: they
// keep the grammar of their API, and make the same answer as the request that is not streamed.

namespace thimble::server {
namespace {

using StreamJson = nlohmann::json;

const Tokenizer& StreamTokenizer() {
  static const Tokenizer tokenizer = Tokenizer::Load(THIMBLE_SOURCE_DIR "/models/mini");
  return tokenizer;
}

struct Scene {
  std::string markup;
  FinishReason reason = FinishReason::kStop;
  std::string error = {};
  size_t num_cached = 0;
};

/// Answers each job at once, the same way.
class InstantBackend : public Backend {
 public:
  explicit InstantBackend(Scene scene) : scene_(std::move(scene)) {}
  bool Submit(std::shared_ptr<Job> job) override {
    if (room == 0) return false;
    --room;
    job->SetCached(scene_.num_cached);
    job->SetProgress(JobPhase::kPrompt, scene_.num_cached);
    std::vector<TokenId> ids;
    StreamTokenizer().EncodeMarkup(scene_.markup, &ids);
    for (const TokenId id : ids) job->Put({id, -0.5, {{id, -0.5}}});
    if (scene_.error.empty()) {
      job->End(scene_.reason);
    } else {
      job->Fail(scene_.error);
    }
    requests.push_back(job->request());
    return true;
  }
  size_t context() const override { return 2048; }
  std::vector<std::pair<std::string, double>> Metrics() const override { return {}; }

  size_t room = 1000;
  std::vector<JobRequest> requests;

 private:
  const Scene scene_;
};

ServedModel StreamModel() {
  ServedModel model;
  model.tokenizer = &StreamTokenizer();
  model.markup = ChatMarkup::kKimiK3;
  model.name = "mini";
  model.context = 2048;
  model.fingerprint = "fp_1";
  return model;
}

struct Outcome {
  std::string stream;
  std::string whole;
  std::string error;
};

Outcome RunScene(Api api, const std::string& body, const Scene& scene) {
  const ServedModel model = StreamModel();
  const ApiRequest request = ReadApiRequest(api, body, model);
  InstantBackend backend(scene);
  Outcome outcome;
  {
    AnswerRun run(api, model, request, backend);
    // Begun, kept alive, and then taken in two steps.
    outcome.stream = run.Take();
    outcome.stream += run.KeepAlive();
    while (run.Step()) outcome.stream += run.Take();
    outcome.stream += run.Take();
    EXPECT_EQ(run.Take(), "") << "something after the end";
  }
  AnswerRun run(api, model, request, backend);
  while (run.Step()) continue;
  outcome.error = run.error();
  if (run.error().empty()) outcome.whole = run.Whole();
  return outcome;
}

// Without what is drawn at random for each answer, or is the time.
StreamJson Comparable(StreamJson json) {
  if (json.is_object()) {
    for (const char* key : {"id", "call_id", "created", "created_at"}) json.erase(key);
  }
  if (json.is_structured()) {
    for (StreamJson& value : json) value = Comparable(value);
  }
  return json;
}

Rebuilt Rebuild(Api api, const EventStream& stream) {
  switch (api) {
    case Api::kChat:
      return RebuildChat(stream);
    case Api::kCompletions:
      return RebuildCompletion(stream);
    case Api::kMessages:
      return RebuildMessage(stream);
    case Api::kResponses:
      break;
  }
  return ResponseRebuilder().Rebuild(stream);
}

void CheckScene(Api api, const std::string& body, const Scene& scene) {
  SCOPED_TRACE(scene.markup + " " + scene.error);
  const Outcome outcome = RunScene(api, body, scene);
  const Rebuilt rebuilt = Rebuild(api, ParseEvents(outcome.stream));
  if (!scene.error.empty()) {
    EXPECT_EQ(outcome.error, scene.error);
    EXPECT_EQ(rebuilt.error.value("message", ""), scene.error);
    return;
  }
  EXPECT_TRUE(rebuilt.error.is_null()) << rebuilt.error;
  const StreamJson whole = StreamJson::parse(outcome.whole);
  EXPECT_EQ(Comparable(rebuilt.answer), Comparable(whole)) << outcome.stream;
}

const std::string kToolsOfChat =
    R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}])";
const std::string kToolsOfMessages = R"("tools": [{"name": "f", "input_schema": {}}])";
const std::string kToolsOfResponses = R"("tools": [{"type": "function", "name": "f"}])";

struct BodyOfApi {
  Api api;
  std::string body;
};
std::vector<BodyOfApi> Bodies() {
  const std::string hello = R"("messages": [{"role": "user", "content": "Hello"}], )";
  return {
      {Api::kChat, "{" + hello + kToolsOfChat +
                       R"(, "stop": "STOP", "stream_options": {"include_usage": true}})"},
      {Api::kChat, "{" + hello + kToolsOfChat +
                       R"(, "stop": "STOP", "logprobs": true, "top_logprobs": 1, "n": 2,
                              "stream_options": {"include_usage": true}})"},
      {Api::kChat, "{" + hello + R"("functions": [{"name": "f", "parameters": {}}], "stop": "STOP",
                           "stream_options": {"include_usage": true}})"},
      {Api::kMessages,
       R"({"max_tokens": 500, )" + hello + kToolsOfMessages + R"(, "stop_sequences": ["STOP"]})"},
      {Api::kResponses, R"({"input": "Hello", "include": ["reasoning.encrypted_content"], )" +
                            kToolsOfResponses + "}"}};
}

std::string Call(const std::string& name, const std::string& inside) {
  return "<|open|>call tool=\"" + name + "\" index=\"1\"<|sep|>" + inside + "<|close|>call<|sep|>";
}
std::string Argument(const std::string& text) {
  return "<|open|>argument key=\"a\" type=\"string\"<|sep|>" + text + "<|close|>argument<|sep|>";
}

// Thought, text, calls, in all combinations; the end of the message is left out.
std::vector<std::string> Answers() {
  const std::string json = "<|open|>json type=\"object\"<|sep|>";
  const std::string end = "<|close|>json<|sep|>";
  std::vector<std::string> answers;
  for (const char* thought : {"", "Hm, let me see."}) {
    for (const char* text : {"", "It is so.", "It is STOP not so."}) {
      for (const std::string& calls :
           {std::string(), Call("f", Argument("x y")), Call("f", "") + Call("f", Argument("")),
            Call("unknown", Argument("x")), Call("f", json + "null" + end),
            Call("unknown", Argument("x")) + Call("f", json + "[1]" + end)}) {
        std::string answer = std::string(thought) + "<|close|>think<|sep|>";
        if (*text != 0) {
          answer += std::string("<|open|>response<|sep|>") + text + "<|close|>response<|sep|>";
        }
        if (!calls.empty()) answer += "<|open|>tools<|sep|>" + calls + "<|close|>tools<|sep|>";
        answers.push_back(answer);
      }
    }
  }
  return answers;
}

TEST(AnswerStreamTest, EveryCombinationIsTheWholeAnswer) {
  const std::string end = "<|close|>message<|sep|><|end_of_msg|>";
  for (const auto& [api, body] : Bodies()) {
    SCOPED_TRACE(body);
    for (const std::string& answer : Answers()) {
      CheckScene(api, body, {answer + end});
      CheckScene(api, body, {answer, FinishReason::kLength, {}, 7});
      // One that has stopped already cannot fail.
      if (answer.find("STOP") != std::string::npos) continue;
      CheckScene(api, body, {answer, FinishReason::kLength, "the drive failed"});
    }
  }
}

TEST(AnswerStreamTest, EveryCutIsTheWholeAnswer) {
  const std::string answer =
      "Hm.<|close|>think<|sep|><|open|>response<|sep|>So.<|close|>response"
      "<|sep|><|open|>tools<|sep|>" +
      Call("f", Argument("x y")) + "<|close|>tools<|sep|>";
  std::vector<TokenId> ids;
  StreamTokenizer().EncodeMarkup(answer, &ids);
  for (const auto& [api, body] : Bodies()) {
    for (size_t count = 0; count < ids.size(); ++count) {
      const std::string cut = StreamTokenizer().Decode(std::span(ids).first(count));
      CheckScene(api, body, {cut, FinishReason::kLength});
      CheckScene(api, body, {cut, FinishReason::kLength, "the drive failed"});
    }
  }
}

TEST(AnswerStreamTest, CompletionsAreTheWholeAnswer) {
  for (const char* fields :
       {R"("prompt": "In the")", R"("prompt": ["In", [5, 6]], "n": 2, "echo": true)",
        R"("prompt": "In", "logprobs": 1, "stop": "and")",
        R"("prompt": [[5], [6]], "logprobs": 0)"}) {
    const std::string body =
        std::string("{") + fields + R"(, "stream_options": {"include_usage": true}})";
    SCOPED_TRACE(body);
    CheckScene(Api::kCompletions, body, {"beginning and the end", FinishReason::kStop});
    CheckScene(Api::kCompletions, body, {"beginning and", FinishReason::kLength});
    CheckScene(Api::kCompletions, body, {"", FinishReason::kLength});
    CheckScene(Api::kCompletions, body, {"beg", FinishReason::kLength, "the drive failed"});
  }
}

StreamJson WholeOf(Api api, const std::string& body, const Scene& scene) {
  return StreamJson::parse(RunScene(api, body, scene).whole);
}

TEST(AnswerStreamTest, ACutCallIsNoCallToAnswer) {
  const std::string cut =
      "<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index="
      "\"1\"<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>rm -rf /";
  const auto whole = [&](size_t i) {
    return WholeOf(Bodies()[i].api, Bodies()[i].body, {cut, FinishReason::kLength});
  };
  EXPECT_EQ(whole(0)["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole(3)["stop_reason"], "max_tokens");
  const StreamJson response = whole(4);
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"].back()["status"], "incomplete");
}

TEST(AnswerStreamTest, NamesTheStopSequence) {
  const Scene scene = {"<|close|>think<|sep|><|open|>response<|sep|>one END two STOP"};
  const StreamJson whole = WholeOf(Api::kMessages,
                                   R"({"max_tokens": 9, "stop_sequences": ["STOP", "END"],
                                       "messages": [{"role": "user", "content": "Hello"}]})",
                                   scene);
  EXPECT_EQ(whole["stop_reason"], "stop_sequence");
  EXPECT_EQ(whole["stop_sequence"], "END");
  EXPECT_EQ(whole["content"][0]["text"], "one ");
}

TEST(AnswerStreamTest, MessagesBeginOnceThePromptIsKnown) {
  const ServedModel model = StreamModel();
  const ApiRequest request = ReadApiRequest(
      Api::kMessages, R"({"max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]})",
      model);
  std::shared_ptr<Job> job;
  class Waiting : public InstantBackend {
   public:
    explicit Waiting(std::shared_ptr<Job>& latest) : InstantBackend({}), job_(latest) {}
    bool Submit(std::shared_ptr<Job> submitted) override {
      job_ = std::move(submitted);
      return true;
    }
    std::shared_ptr<Job>& job_;
  } backend(job);
  AnswerRun run(Api::kMessages, model, request, backend);
  run.Step();
  EXPECT_EQ(run.Take(), "");
  EXPECT_EQ(run.KeepAlive(), ": keepalive queued\n\n");
  const size_t length = request.job.prompt.size();
  job->SetCached(length);
  job->SetProgress(JobPhase::kPrompt, length);
  run.Step();
  const EventStream begin = ParseEvents(run.Take());
  ASSERT_EQ(begin.events.size(), 1u);
  const StreamJson& usage = begin.events[0].json["message"]["usage"];
  EXPECT_EQ(usage["input_tokens"], 0);
  EXPECT_EQ(usage["cache_read_input_tokens"], length);
  EXPECT_THAT(run.KeepAlive(), testing::HasSubstr("event: ping"));
}

TEST(AnswerStreamTest, ResponsesSayTheRequestBack) {
  const std::string fields =
      R"("instructions": "Be brief.", "max_output_tokens": 50, "metadata": {"a": "b"},
         "parallel_tool_calls": true, "temperature": 0.5, "top_p": 0.25, "tool_choice": "auto",
         "reasoning": {"effort": "high"}, "text": {"format": {"type": "json_object"}},
         "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}])";
  const StreamJson whole = WholeOf(Api::kResponses, R"({"input": "Hello", )" + fields + "}",
                                   {"<|close|>think<|sep|>So."});
  const StreamJson sent = StreamJson::parse("{" + fields + "}");
  for (const auto& [key, value] : sent.items()) {
    EXPECT_EQ(whole[key], value) << key;
  }
  const StreamJson plain = WholeOf(Api::kResponses, R"({"input": "Hello"})", {"So."});
  EXPECT_TRUE(plain["instructions"].is_null());
  EXPECT_TRUE(plain["tools"].empty());
  EXPECT_EQ(plain["text"]["format"]["type"], "text");
}

TEST(AnswerStreamTest, CreatedIsTheTimeOfTheAnswer) {
  const int64_t before = UnixTime();
  for (const auto& [api, body] : Bodies()) {
    if (api == Api::kMessages) continue;
    const StreamJson whole = WholeOf(api, body, {"So."});
    EXPECT_GE(whole[api == Api::kResponses ? "created_at" : "created"], before);
  }
  EXPECT_GE(WholeOf(Api::kCompletions, R"({"prompt": "a"})", {"b"})["created"], before);
}

TEST(AnswerStreamTest, SeveralAnswersDifferInTheirSeed) {
  const ServedModel model = StreamModel();
  const ApiRequest request = ReadApiRequest(
      Api::kCompletions, R"({"prompt": ["a", "b"], "n": 2, "seed": 5, "max_tokens": 3})", model);
  const std::vector<JobRequest> jobs = JobsOf(request);
  ASSERT_EQ(jobs.size(), 4u);
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(jobs[i].sampling.seed, 5 + i % 2);
    EXPECT_EQ(jobs[i].prompt, jobs[i - i % 2].prompt);
    EXPECT_EQ(jobs[i].max_tokens, 3u);
  }
  EXPECT_NE(jobs[0].prompt, jobs[2].prompt);
}

TEST(AnswerStreamTest, ALongListOfPromptsTakesFewPlacesInTheQueue) {
  const ServedModel model = StreamModel();
  std::string prompts = "[5]";
  for (int i = 0; i < 40; ++i) prompts += ",[6]";
  const ApiRequest request =
      ReadApiRequest(Api::kCompletions, R"({"prompt": [)" + prompts + "]}", model);
  InstantBackend backend({"So."});
  backend.room = 4;
  AnswerRun run(Api::kCompletions, model, request, backend);
  EXPECT_EQ(backend.requests.size(), 4u);
  backend.room = 100;
  run.Step();
  EXPECT_LE(backend.requests.size(), 12u);
  while (run.Step()) continue;
  EXPECT_EQ(run.error(), "");
  EXPECT_EQ(StreamJson::parse(run.Whole())["choices"].size(), 41u);

  InstantBackend full({"So."});
  full.room = 0;
  EXPECT_THROW(AnswerRun(Api::kCompletions, model, request, full), ApiError);
}

}  // namespace
}  // namespace thimble::server
