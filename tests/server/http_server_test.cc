#include "server/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/http_client.h"
#include "server/scripted_backend.h"

namespace thimble::server {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

constexpr const char* kHello = R"({"messages": [{"role": "user", "content": "Hello"}])";

const Tokenizer& Mini() {
  static const Tokenizer tokenizer = Tokenizer::Load(THIMBLE_SOURCE_DIR "/models/mini");
  return tokenizer;
}

// A script that answers with `markup`, token by token.
ScriptedBackend::Script Answer(const std::string& markup) {
  return [markup](Job& job) {
    std::vector<TokenId> ids;
    Mini().EncodeMarkup(markup, &ids);
    for (const TokenId id : ids) job.Put({id, -0.5F, {}});
    job.End(FinishReason::kStop);
  };
}

constexpr const char* kAnswer =
    "Hm.<|close|>think<|sep|><|open|>response<|sep|>It is so.<|close|>response<|sep|>"
    "<|close|>message<|sep|><|end_of_msg|>";

class HttpServerTest : public testing::Test {
 protected:
  void Start(ScriptedBackend::Script script, HttpOptions options = {}) {
    model_.tokenizer = &Mini();
    model_.markup = ChatMarkup::kKimiK3;
    model_.name = "mini";
    model_.context = 2048;
    backend_ = std::make_unique<ScriptedBackend>(std::move(script));
    options.port = 0;
    server_ = std::make_unique<HttpServer>(options, model_, *backend_);
    port_ = server_->Start();
  }
  void TearDown() override {
    // A job that still runs must learn that nobody waits.
    for (size_t i = 0; backend_ != nullptr && backend_->job(i) != nullptr; ++i) {
      backend_->job(i)->Cancel();
    }
    server_.reset();
  }

  std::string Post(const std::string& path, const std::string& body,
                   const std::string& headers = {}) const {
    RawClient client(port_);
    client.Post(path, body, headers);
    return client.ReadAll();
  }
  std::string Get(const std::string& path,
                  const std::string& headers = "Host: 127.0.0.1\r\n") const {
    RawClient client(port_);
    client.Get(path, headers);
    return client.ReadAll();
  }
  static int Status(const std::string& response) { return std::stoi("0" + response.substr(9, 3)); }
  static Json BodyOf(const std::string& response) {
    return Json::parse(response.substr(response.find("\r\n\r\n") + 4), nullptr, false);
  }
  // The JSON of every event of a stream, chunk framing removed.
  static std::vector<Json> Events(const std::string& response) {
    std::vector<Json> events;
    for (size_t at = 0; (at = response.find("data: ", at)) != std::string::npos; at += 6) {
      const std::string line = response.substr(at + 6, response.find("\n\n", at) - at - 6);
      if (line == "[DONE]") continue;
      events.push_back(Json::parse(line, nullptr, false));
      EXPECT_FALSE(events.back().is_discarded()) << line;
    }
    return events;
  }
  // What the deltas of a chat stream make together.
  static std::string Joined(const std::vector<Json>& events, const char* key) {
    std::string text;
    for (const Json& event : events) {
      if (event["choices"].empty()) continue;
      text += event["choices"][0]["delta"].value(key, "");
    }
    return text;
  }

  ServedModel model_;
  std::unique_ptr<ScriptedBackend> backend_;
  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
};

TEST_F(HttpServerTest, AnswersAChatAtOnce) {
  Start(Answer(kAnswer));
  const std::string response = Post("/v1/chat/completions", std::string(kHello) + "}");
  EXPECT_EQ(Status(response), 200);
  const Json json = BodyOf(response);
  EXPECT_EQ(json["object"], "chat.completion");
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "It is so.");
  EXPECT_EQ(choice["message"]["reasoning_content"], "Hm.");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["prompt_tokens"], backend_->job(0)->request().prompt.size());
  EXPECT_GT(json["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_EQ(Status(Post("/chat/completions", std::string(kHello) + "}")), 200);
}

TEST_F(HttpServerTest, StreamsAChat) {
  Start(Answer(kAnswer));
  const std::string response =
      Post("/v1/chat/completions", std::string(kHello) + R"(, "stream": true})");
  EXPECT_THAT(response, HasSubstr("text/event-stream"));
  EXPECT_THAT(response, HasSubstr("data: [DONE]\n\n"));
  const std::vector<Json> events = Events(response);
  ASSERT_GT(events.size(), 3u);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(Joined(events, "reasoning_content"), "Hm.");
  EXPECT_EQ(Joined(events, "content"), "It is so.");
  size_t num_ends = 0;
  for (const Json& event : events) {
    EXPECT_EQ(event["id"], events[0]["id"]);
    EXPECT_FALSE(event.contains("usage"));
    num_ends += event["choices"][0]["finish_reason"].is_null() ? 0 : 1;
  }
  EXPECT_EQ(num_ends, 1u);
}

TEST_F(HttpServerTest, SaysWhatHadNoEffect) {
  Start(Answer(kAnswer));
  for (const char* stream : {"false", "true"}) {
    const std::string asked = std::string(kHello) + R"(, "stream": )" + stream;
    EXPECT_THAT(Post("/v1/chat/completions", asked + R"(, "frobnicate": 1})"),
                HasSubstr("X-Thimble-Note: not known and ignored: frobnicate\r\n"));
    EXPECT_THAT(Post("/v1/chat/completions", asked + "}"), Not(HasSubstr("X-Thimble-Note:")));
  }
}

TEST_F(HttpServerTest, HidesThoughtsAndStopsAtTokensOfTheRequest) {
  Start(Answer(kAnswer));
  const Json hidden = BodyOf(
      Post("/v1/chat/completions", std::string(kHello) + R"(, "reasoning": {"exclude": true}})"));
  EXPECT_EQ(hidden["choices"][0]["message"]["content"], "It is so.");
  EXPECT_FALSE(hidden["choices"][0]["message"].contains("reasoning_content"));
  std::vector<TokenId> ids;
  Mini().Encode(" is", &ids);
  const Json stopped =
      BodyOf(Post("/v1/chat/completions", std::string(kHello) + R"(, "stop_token_ids": [)" +
                                              std::to_string(ids[0]) + "]}"));
  EXPECT_EQ(stopped["choices"][0]["message"]["content"], "It");
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
}

TEST_F(HttpServerTest, SendsUsageOnlyWhereAsked) {
  Start(Answer(kAnswer));
  const auto events = Events(Post(
      "/v1/chat/completions",
      std::string(kHello) + R"(, "stream": true, "stream_options": {"include_usage": true}})"));
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_GT(events.back()["usage"]["completion_tokens"], 0);
}

// A long prefill, on a clock by which a sign of life is due every 250 ms.
TEST_F(HttpServerTest, HeadersComeAtOnceAndSignsOfLifeAfterThem) {
  HttpOptions options;
  options.time_scale = 20;
  Start(
      [](Job& job) {
        for (size_t done = 0; done < 5 && !job.cancelled(); ++done) {
          job.SetProgress(JobPhase::kPrompt, done);
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
        }
        Answer(kAnswer)(job);
      },
      options);
  RawClient client(port_);
  client.Post("/v1/chat/completions", std::string(kHello) + R"(, "stream": true})",
              "Accept-Encoding: gzip, deflate, br\r\n");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(client.ReadUntil("\"role\":\"assistant\""), HasSubstr("200 OK"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(250));
  const std::string response = client.ReadAll();
  EXPECT_THAT(response, HasSubstr(": keepalive prefill "));
  EXPECT_EQ(Joined(Events(response), "content"), "It is so.");
  EXPECT_THAT(Post("/v1/responses", R"({"input": "x", "stream": true})"),
              HasSubstr("event: keepalive\ndata: {\"type\":\"keepalive\",\"sequence_number\":2}"));
}

TEST_F(HttpServerTest, ADisconnectIsNoticedInEveryPhase) {
  for (const JobPhase phase : {JobPhase::kQueued, JobPhase::kPrompt, JobPhase::kAnswer}) {
    for (const char* stream : {"true", "false"}) {
      TearDown();
      Start([phase](Job& job) {
        if (phase == JobPhase::kPrompt) job.SetProgress(phase, 1);
        if (phase == JobPhase::kAnswer) job.Put({'x', 0, {}});
        WaitFor([&] { return job.cancelled(); }, 5000);
        job.End(FinishReason::kInterrupted);
      });
      RawClient client(port_);
      client.Post("/v1/chat/completions", std::string(kHello) + R"(, "stream": )" + stream + "}");
      ASSERT_TRUE(WaitFor([&] { return backend_->job(0) != nullptr; }));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_FALSE(backend_->job(0)->cancelled());
      client.HangUp();
      EXPECT_TRUE(WaitFor([&] { return backend_->job(0)->cancelled(); })) << stream;
    }
  }
}

TEST_F(HttpServerTest, AStopStringAcrossTokensIsCutAndEndsTheWork) {
  std::atomic<bool> cancelled = false;
  Start([&](Job& job) {
    std::vector<TokenId> ids;
    Mini().EncodeMarkup("<|close|>think<|sep|><|open|>response<|sep|>one two STOP three four",
                        &ids);
    for (const TokenId id : ids) job.Put({id, -0.5F, {}});
    // The answer is not at its end: only the server can know that nobody wants the rest.
    cancelled = WaitFor([&] { return job.cancelled(); }, 10'000);
    job.End(FinishReason::kLength);
  });
  const std::string body = std::string(kHello) + R"(, "stop": "o STOP t", "stream": true})";
  const auto events = Events(Post("/v1/chat/completions", body));
  EXPECT_EQ(Joined(events, "content"), "one tw");
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(WaitFor([&] { return cancelled.load(); }, 10'000));
}

TEST_F(HttpServerTest, CharactersAcrossTokensComeWhole) {
  Start([](Job& job) {
    std::vector<TokenId> ids;
    Mini().EncodeMarkup("<|close|>think<|sep|><|open|>response<|sep|>", &ids);
    for (const char c : std::string("\xf0\x9f\x8e\x89!")) {
      std::vector<TokenId> byte;
      Mini().Encode(std::string(1, c), &byte);
      ids.insert(ids.end(), byte.begin(), byte.end());
    }
    for (const TokenId id : ids) job.Put({id, 0, {}});
    job.End(FinishReason::kLength);
  });
  const auto events =
      Events(Post("/v1/chat/completions", std::string(kHello) + R"(, "stream": true})"));
  EXPECT_EQ(Joined(events, "content"), "\U0001F389!");
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "length");
}

constexpr const char* kCall =
    "<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>"
    "<|open|>argument key=\"a\" type=\"string\"<|sep|>x y<|close|>argument<|sep|>"
    "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";
constexpr const char* kTools =
    R"(, "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}])";

TEST_F(HttpServerTest, StreamsToolCalls) {
  Start(Answer(kCall));
  const auto events =
      Events(Post("/v1/chat/completions", std::string(kHello) + kTools + R"(, "stream": true})"));
  std::string arguments;
  size_t num_names = 0;
  for (const Json& event : events) {
    const Json& delta = event["choices"][0]["delta"];
    if (!delta.contains("tool_calls")) continue;
    const Json& call = delta["tool_calls"][0];
    EXPECT_EQ(call["index"], 0);
    if (call.contains("id")) {
      EXPECT_EQ(call["type"], "function");
      EXPECT_EQ(call["function"]["name"], "f");
      ++num_names;
    }
    arguments += call["function"]["arguments"];
  }
  EXPECT_EQ(num_names, 1u);
  EXPECT_EQ(arguments, R"({"a":"x y"})");
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "tool_calls");

  const Json whole = BodyOf(Post("/v1/chat/completions", std::string(kHello) + kTools + "}"));
  const Json& message = whole["choices"][0]["message"];
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"a":"x y"})");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "tool_calls");
}

TEST_F(HttpServerTest, AnswersInAnthropicsShape) {
  Start(Answer(kAnswer));
  const std::string body =
      R"({"max_tokens": 50, "system": [{"type": "text", "text": "Be brief."}], "messages":
         [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])";
  const Json whole = BodyOf(Post("/v1/messages", body + "}"));
  EXPECT_EQ(whole["type"], "message");
  EXPECT_EQ(whole["content"][0]["thinking"], "Hm.");
  EXPECT_EQ(whole["content"][1]["text"], "It is so.");
  EXPECT_EQ(whole["stop_reason"], "end_turn");

  const std::string stream = Post("/v1/messages?beta=true", body + R"(, "stream": true})");
  std::vector<std::string> types;
  std::string text;
  for (const Json& event : Events(stream)) {
    types.push_back(event["type"]);
    EXPECT_THAT(stream, HasSubstr("event: " + types.back() + "\n"));
    if (types.back() == "content_block_delta") text += event["delta"].value("text", "");
  }
  EXPECT_EQ(types.front(), "message_start");
  EXPECT_EQ(types.back(), "message_stop");
  EXPECT_EQ(text, "It is so.");
  EXPECT_THAT(stream, Not(HasSubstr("[DONE]")));

  const Json count = BodyOf(Post("/v1/messages/count_tokens", body + "}"));
  EXPECT_EQ(count["input_tokens"], backend_->job(0)->request().prompt.size());
}

TEST_F(HttpServerTest, AnthropicsToolsGoBothWays) {
  Start(Answer(kCall));
  const Json whole = BodyOf(Post("/v1/messages", R"({"max_tokens": 50,
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "messages": [{"role": "user", "content": "go"},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm", "signature": ""},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1",
        "content": [{"type": "text", "text": "done"}]}]}]})"));
  EXPECT_EQ(whole["content"][0]["input"], Json({{"a", "x y"}}));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  const std::string prompt = Mini().Decode(backend_->job(0)->request().prompt);
  EXPECT_THAT(prompt, HasSubstr("<|open|>message role=\"tool\" tool=\"f\" index=\"1\"<|sep|>done"));
  EXPECT_THAT(prompt, HasSubstr("key=\"a\" type=\"number\"<|sep|>1<"));
  EXPECT_THAT(prompt, HasSubstr("<|open|>think<|sep|>Hm<|close|>"));
}

TEST_F(HttpServerTest, AnswersInTheShapeOfResponses) {
  Start(Answer(kAnswer));
  const Json whole = BodyOf(Post("/v1/responses", R"({"input": "Hello"})"));
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "It is so.");
  std::string text;
  size_t num_ends = 0;
  const auto events = Events(Post("/v1/responses", R"({"input": "Hello", "stream": true})"));
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    if (events[i]["type"] == "response.output_text.delta") text += events[i]["delta"];
    num_ends += events[i]["type"] == "response.completed" ? 1 : 0;
  }
  EXPECT_EQ(events.front()["type"], "response.created");
  EXPECT_EQ(events.back()["type"], "response.completed");
  EXPECT_EQ(num_ends, 1u);
  EXPECT_EQ(text, "It is so.");
}

// As Codex asks: it drops a thought's text, and sends back what it thinks is encrypted.
TEST_F(HttpServerTest, ThoughtsAndCallsOfResponsesComeBack) {
  Start(Answer("Hm." + std::string(kCall)));
  const std::string tools = R"("tools": [{"type": "function", "name": "f", "strict": false,
      "parameters": {"type": "object"}}, {"type": "web_search"}], "store": false)";
  const std::string include = R"(, "include": ["reasoning.encrypted_content"])";
  const std::string go = R"({"type": "message", "role": "developer", "content":
      [{"type": "input_text", "text": "Be brief."}]}, {"role": "user", "content": "go"})";
  const Json whole =
      BodyOf(Post("/v1/responses", R"({"input": [)" + go + "], " + tools + include + "}"));
  Json thought = whole["output"][0];
  const Json& call = whole["output"][1];
  EXPECT_EQ(thought["type"], "reasoning");
  EXPECT_EQ(call["name"], "f");
  EXPECT_EQ(call["arguments"], R"({"a":"x y"})");
  EXPECT_NE(call["id"], call["call_id"]);

  thought.erase("content");
  const Json result = {{"type", "function_call_output"},
                       {"call_id", call["call_id"]},
                       {"output", Json::parse(R"([{"type": "input_text", "text": "done"}])")}};
  Post("/v1/responses", R"({"input": [)" + go + "," + thought.dump() + "," + call.dump() + "," +
                            result.dump() + "], " + tools + "}");
  const std::string prompt = Mini().Decode(backend_->job(1)->request().prompt);
  EXPECT_THAT(prompt, HasSubstr("<|open|>think<|sep|>Hm.<|close|>"));
  EXPECT_THAT(prompt, HasSubstr("key=\"a\" type=\"string\"<|sep|>x y<"));
  EXPECT_THAT(prompt, HasSubstr("role=\"tool\" tool=\"f\" index=\"1\"<|sep|>done<"));
  EXPECT_THAT(prompt, HasSubstr("role=\"system\"<|sep|>Be brief."));

  const Json plain = BodyOf(Post("/v1/responses", R"({"input": "Hello"})"));
  EXPECT_FALSE(plain["output"][0].contains("encrypted_content"));
  // Of another server, which means nothing here.
  Post("/v1/responses",
       R"({"input": [{"role": "user", "content": "go"}, {"type": "reasoning", "summary": [],
           "encrypted_content": "gAAAA"}, {"role": "user", "content": "on"}]})");
  EXPECT_THAT(Mini().Decode(backend_->job(3)->request().prompt), Not(HasSubstr("gAAAA")));
}

TEST_F(HttpServerTest, NewerApisAskForJsonToo) {
  Start(Answer(kAnswer));
  const std::string format = R"("format": {"type": "json_schema", "name": "n",
      "schema": {"type": "object", "additionalProperties": false}}})";
  Post("/v1/responses", R"({"input": "Hello", "text": {"verbosity": "low", )" + format + "}");
  Post("/v1/messages", R"({"max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}],
      "output_config": {)" +
                           format + "}");
  for (const size_t i : {0u, 1u}) {
    ASSERT_NE(backend_->job(i), nullptr);
    EXPECT_NE(backend_->job(i)->request().filter, nullptr);
    EXPECT_THAT(Mini().Decode(backend_->job(i)->request().prompt),
                HasSubstr("response_format=json_schema"));
  }
  Post("/v1/responses", R"({"input": "Hello", "text": {"format": {"type": "text"}}})");
  EXPECT_EQ(backend_->job(2)->request().filter, nullptr);
  EXPECT_EQ(
      Status(Post("/v1/responses", R"({"input": "x", "text": {"format": {"type": "grammar"}}})")),
      400);
}

TEST_F(HttpServerTest, ContinuesText) {
  Start(Answer("and the earth"));
  const Json json = BodyOf(Post("/v1/completions", R"({"prompt": "In", "max_tokens": 3})"));
  EXPECT_EQ(json["choices"][0]["text"], "and the earth");
  EXPECT_EQ(backend_->job(0)->request().max_tokens, 3u);
  const Json ids = BodyOf(Post("/v1/completions", R"({"prompt": [5, 6], "echo": true})"));
  EXPECT_EQ(backend_->job(1)->request().prompt, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(Status(Post("/v1/completions", R"({"prompt": [99999999]})")), 400);
  EXPECT_EQ(Status(Post("/v1/completions", R"({"prompt": ["a", 3]})")), 400);
  EXPECT_EQ(Status(Post("/v1/completions", R"({"prompt": "a", "suffix": "b"})")), 400);
  EXPECT_EQ(Status(Post("/v1/completions", R"({"prompt": "a", "best_of": 2})")), 400);
}

TEST_F(HttpServerTest, RefusesInEachApisShape) {
  Start(Answer(kAnswer));
  const auto expect = [&](const std::string& path, const std::string& body, int status,
                          const std::string& part) {
    const std::string response = Post(path, body);
    EXPECT_EQ(Status(response), status) << body;
    const Json json = BodyOf(response);
    EXPECT_THAT(json["error"]["message"].get<std::string>(), HasSubstr(part)) << body;
    EXPECT_EQ(json.contains("type"), path == "/v1/messages");
  };
  const std::string hello = kHello;
  expect("/v1/chat/completions", "{", 400, "not valid JSON");
  expect("/v1/chat/completions", "[]", 400, "JSON object");
  expect("/v1/chat/completions", "{}", 400, "messages");
  expect("/v1/chat/completions", hello + R"(, "n": 17})", 400, "n: expected");
  expect("/v1/chat/completions", hello + R"(, "temperature": "hot"})", 400, "temperature");
  expect("/v1/chat/completions", hello + R"(, "tool_choice": "required"})", 400, "tools");
  expect("/v1/chat/completions", hello + R"(, "tools": [null]})", 400, "tools[0]");
  expect("/v1/chat/completions", hello + R"(, "reasoning_effort": "huge"})", 400, "huge");
  expect("/v1/chat/completions",
         R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", 400, "vision");
  expect("/v1/messages", R"({"messages": [{"role": "user", "content": "x"}]})", 400, "max_tokens");
  expect("/v1/messages", R"({"max_tokens": 5, "messages": [{"role": "cat", "content": "x"}]})", 400,
         "messages[0].role");
  expect("/v1/responses", R"({"input": 3})", 400, "input");
  expect("/v1/nothing", "{}", 404, "there is no POST /v1/nothing");
  EXPECT_EQ(backend_->job(0), nullptr);
}

TEST_F(HttpServerTest, SaysWhenThePromptIsTooLong) {
  Start(Answer(kAnswer));
  std::string text;
  for (int i = 0; i < 3000; ++i) text += " word";
  const std::string message = R"("messages": [{"role": "user", "content": ")" + text + R"("}])";
  const Json chat = BodyOf(Post("/v1/chat/completions", "{" + message + "}"));
  EXPECT_EQ(chat["error"]["code"], "context_length_exceeded");
  EXPECT_THAT(chat["error"]["message"].get<std::string>(), HasSubstr("maximum context length"));
  const Json messages = BodyOf(Post("/v1/messages", R"({"max_tokens": 5, )" + message + "}"));
  EXPECT_EQ(messages["error"]["type"], "invalid_request_error");
  EXPECT_THAT(messages["error"]["message"].get<std::string>(), HasSubstr("prompt is too long"));
}

TEST_F(HttpServerTest, TellsErrorsBeforeAndAfterTheHeaders) {
  Start([](Job& job) { job.Fail("the drive failed"); });
  const std::string whole = Post("/v1/chat/completions", std::string(kHello) + "}");
  EXPECT_EQ(Status(whole), 500);
  EXPECT_EQ(BodyOf(whole)["error"]["message"], "the drive failed");
  const std::string stream =
      Post("/v1/chat/completions", std::string(kHello) + R"(, "stream": true})");
  EXPECT_EQ(Status(stream), 200);
  EXPECT_EQ(Events(stream).back()["error"]["message"], "the drive failed");
  EXPECT_THAT(stream, HasSubstr("data: [DONE]"));
  EXPECT_THAT(Post("/v1/messages", R"({"max_tokens": 5, "stream": true,
              "messages": [{"role": "user", "content": "x"}]})"),
              HasSubstr("event: error\ndata: {\"type\":\"error\""));
}

TEST_F(HttpServerTest, AFullQueueIs429) {
  Start(Answer(kAnswer));
  backend_->full = true;
  const std::string response = Post("/v1/chat/completions", std::string(kHello) + "}");
  EXPECT_EQ(Status(response), 429);
  EXPECT_THAT(response, HasSubstr("Retry-After"));
  EXPECT_EQ(BodyOf(response)["error"]["type"], "rate_limit_error");
}

TEST_F(HttpServerTest, GuardsItself) {
  HttpOptions options;
  options.api_key = "secret";
  options.max_body_bytes = 1000;
  Start(Answer(kAnswer), options);
  const std::string body = std::string(kHello) + "}";
  const auto status = [&](const std::string& headers) {
    return Status(Post("/v1/chat/completions", body, headers));
  };
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(status("Authorization: Bearer secrex\r\n"), 401);
  EXPECT_EQ(status("Authorization: Bearer secret\r\n"), 200);
  EXPECT_EQ(status("x-api-key: secret\r\n"), 200);
  const std::string key = "x-api-key: secret\r\n";
  EXPECT_EQ(status(key + "Origin: http://localhost:3000\r\n"), 200);
  EXPECT_EQ(status(key + "Origin: https://evil.example\r\n"), 403);
  EXPECT_EQ(Status(Get("/v1/models", "Host: evil.example\r\n" + key)), 403);
  EXPECT_EQ(Status(Get("/v1/models", "Host: localhost:8080\r\n" + key)), 200);
  EXPECT_EQ(Status(Get("/health")), 200);
  EXPECT_EQ(Status(Post("/v1/chat/completions", std::string(2000, ' '), key)), 413);
}

TEST_F(HttpServerTest, ItsPageWorksFromOtherMachines) {
  HttpOptions options;
  options.allowed_hosts = {"llm.example.org"};
  Start(Answer(kAnswer), options);
  const auto post = [&](const std::string& host, const std::string& origin) {
    RawClient client(port_);
    const std::string body = std::string(kHello) + "}";
    client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: " + host + "\r\nOrigin: " + origin +
                "\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n\r\n" + body);
    return client.ReadAll();
  };
  EXPECT_EQ(Status(post("192.168.1.7:8080", "http://192.168.1.7:8080")), 200);
  EXPECT_EQ(Status(post("host.docker.internal:8080", "http://host.docker.internal:8080")), 200);
  EXPECT_EQ(Status(post("llm.example.org", "https://llm.example.org")), 200);
  const Json origin = BodyOf(post("192.168.1.7:8080", "http://evil.example"));
  EXPECT_THAT(origin["error"]["message"].get<std::string>(),
              HasSubstr("the Origin header is http://evil.example"));
  EXPECT_THAT(origin["error"]["message"].get<std::string>(),
              HasSubstr("--cors http://evil.example"));
  const Json host = BodyOf(post("evil.example", "http://evil.example"));
  EXPECT_THAT(host["error"]["message"].get<std::string>(),
              HasSubstr("the Host header is evil.example"));
  EXPECT_THAT(host["error"]["message"].get<std::string>(), HasSubstr("--allow-host evil.example"));
}

TEST_F(HttpServerTest, AnswersEveryMethodInJson) {
  Start(Answer(kAnswer));
  const auto ask = [&](const std::string& method, const std::string& path) {
    RawClient client(port_);
    client.Get(path, "Host: 127.0.0.1\r\n", method);
    return client.ReadAll();
  };
  for (const std::string method : {"PUT", "DELETE", "PATCH", "TRACE", "BREW", "GET"}) {
    const std::string response = ask(method, "/v1/messages/");
    EXPECT_EQ(Status(response), 405) << method;
    EXPECT_THAT(response, HasSubstr("Allow: POST, OPTIONS\r\n"));
    EXPECT_EQ(BodyOf(response)["type"], "error") << response;
    EXPECT_EQ(Status(ask(method, "/nothing")), 404) << method;
  }
  EXPECT_EQ(Status(ask("PUT", "/v1/models")), 405);
  EXPECT_EQ(Status(ask("CONNECT", "evil.example:443")), 404);
  const std::string empty = ask("POST", "/v1/chat/completions");
  EXPECT_EQ(Status(empty), 400);
  EXPECT_THAT(BodyOf(empty)["error"]["message"].get<std::string>(), HasSubstr("body is empty"));
  EXPECT_THAT(ask("OPTIONS", "*"), HasSubstr("Allow: GET, HEAD, POST, OPTIONS"));
  const std::string head = ask("HEAD", "/v1/models");
  EXPECT_EQ(Status(head), 200);
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
  EXPECT_EQ(Status(ask("GET", "//v1/v1/models/mini/?x=1")), 200);
}

TEST_F(HttpServerTest, TakesBodiesInTheCodingsThatTheyName) {
  Start(Answer(kAnswer));
  // printf '{"content": "x"}' | gzip
  const std::string gzip(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\x4a\xce\xcf\x2b\x49\xcd\x2b\x51"
      "\xb2\x52\x50\xaa\x50\xaa\x05\x00\xee\x5b\x4a\x71\x10\x00\x00\x00",
      36);
  const std::string response = Post("/tokenize", gzip, "Content-Encoding: gzip\r\n");
  EXPECT_EQ(Status(response), 200) << response;
  EXPECT_EQ(BodyOf(response)["count"], 1);
  EXPECT_EQ(Status(Post("/tokenize", "x", "Content-Encoding: br\r\n")), 415);
  EXPECT_EQ(Status(Post("/tokenize", "x", "Content-Encoding: gzip\r\n")), 400);
  // JSON is read as such whatever it is called.
  EXPECT_EQ(Status(Post("/tokenize", R"({"content": "x"})", "Content-Type: text/plain\r\n")), 200);
}

TEST(HttpServerUrlTest, PutsIpv6InBrackets) {
  EXPECT_EQ(UrlOf("127.0.0.1", 80), "http://127.0.0.1:80");
  EXPECT_EQ(UrlOf("::1", 8080), "http://[::1]:8080");
  EXPECT_EQ(UrlOf("[::1]", 8080), "http://[::1]:8080");
}

TEST_F(HttpServerTest, AnswersPreflights) {
  Start(Answer(kAnswer));
  RawClient client(port_);
  client.Get("/v1/chat/completions",
             "Host: 127.0.0.1\r\nOrigin: http://localhost:3000\r\n"
             "Access-Control-Request-Headers: authorization,x-stainless-os\r\n",
             "OPTIONS");
  const std::string response = client.ReadAll();
  EXPECT_EQ(Status(response), 204);
  EXPECT_THAT(response, HasSubstr("Access-Control-Allow-Origin: http://localhost:3000"));
  EXPECT_THAT(response, HasSubstr("Authorization, Content-Type, authorization,x-stainless-os"));
}

TEST_F(HttpServerTest, ListsModelsAndFigures) {
  Start(Answer(kAnswer));
  EXPECT_EQ(BodyOf(Get("/v1/models"))["data"][0]["id"], "mini");
  EXPECT_EQ(BodyOf(Get("/v1/models/mini"))["context_length"], 2048);
  EXPECT_EQ(Status(Get("/v1/models/other")), 404);
  EXPECT_THAT(Get("/metrics"),
              HasSubstr("# TYPE thimble_requests_total counter\nthimble_requests_total 3"));
  const Json tokens = BodyOf(Post("/tokenize", R"({"content": "In the beginning"})"));
  EXPECT_EQ(BodyOf(Post("/detokenize", tokens.dump()))["content"], "In the beginning");
}

TEST_F(HttpServerTest, SurvivesWhatIsNoRequest) {
  Start(Answer(kAnswer));
  for (const std::string& bytes :
       {std::string("\r\n\r\n"), std::string("GET\r\n\r\n"), std::string(100'000, 'x'),
        "GET /" + std::string(20'000, 'a') + " HTTP/1.1\r\n\r\n",
        "GET /health HTTP/1.1\r\nA: " + std::string(200'000, 'b') + "\r\n\r\n",
        std::string("POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n{}"),
        std::string("\xff\xfe\x00\x01", 4)}) {
    RawClient client(port_);
    client.Send(bytes);
    ::usleep(10'000);
  }
  EXPECT_EQ(Status(Post("/v1/chat/completions", std::string(50'000, '['))), 400);
  EXPECT_EQ(Status(Post("/v1/chat/completions", "{\"messages\": \"\xff\"}")), 400);
  EXPECT_EQ(Status(Get("/health")), 200);
}

TEST_F(HttpServerTest, WhatIsNoRequestEndsItsConnection) {
  Start(Answer(kAnswer));
  const std::string inner = "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
  std::string many;
  for (int i = 0; i < 20; ++i) many += "A: " + std::string(8000, 'b') + "\r\n";
  const std::vector<std::pair<std::string, int>> cases = {
      {"GET /health HTTP/1.1\r\n" + many + "\r\n" + inner, 431},
      {"HELO me\r\n\r\n" + inner, 400},
      {"GET /health HTTP/1.1\nHost: x\n\n" + inner, 400},
      {"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: x\r\n\r\n" + inner, 400},
      {"POST /tokenize HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n" + inner, 400},
      {"POST /tokenize HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: "
       "chunked\r\n\r\n0\r\n\r\n" +
           inner,
       400},
      {"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + inner, 400},
      {"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n" + inner, 400},
      {std::string("\x16\x03\x01\x02", 4) + inner, 400}};
  for (const auto& [bytes, status] : cases) {
    RawClient client(port_);
    client.Send(bytes);
    client.EndSending();
    const std::string response = client.ReadAll();
    EXPECT_EQ(Status(response), status) << bytes.substr(0, 100);
    EXPECT_FALSE(BodyOf(response).is_discarded()) << response;
    EXPECT_EQ(response.rfind("HTTP/1.1 "), 0u) << "more than one answer";
  }
}

TEST_F(HttpServerTest, AConnectionServesOneRequestAfterAnother) {
  Start(Answer(kAnswer));
  RawClient client(port_);
  const std::string get = "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
  const std::string body = R"({"content": "x"})";
  client.Send("POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body + get);
  EXPECT_THAT(client.ReadUntil("\"ok\""), HasSubstr("\"count\":1"));
  client.Send(get);
  client.ReadUntil("\"ok\"}HTTP/1.1 200");
  // Idle, it does not keep the server from stopping.
  const auto start = std::chrono::steady_clock::now();
  server_->Stop(5);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST_F(HttpServerTest, StopsAfterTheAnswersOnTheirWay) {
  Start([](Job& job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    Answer(kAnswer)(job);
  });
  RawClient client(port_);
  client.Post("/v1/chat/completions", std::string(kHello) + R"(, "stream": true})");
  client.ReadUntil("assistant");
  server_->Stop(5);
  EXPECT_THAT(client.ReadAll(), HasSubstr("data: [DONE]"));
}

}  // namespace
}  // namespace thimble::server
