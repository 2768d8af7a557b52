#include "server/http_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "server/failing_allocator.h"
#include "server/http_client.h"
#include "server/scripted_backend.h"

namespace thimble::server {
namespace {

using testing::HasSubstr;

// A reply that gives what a script says.
class ScriptedReply : public LiveReply {
 public:
  struct Script {
    bool streamed = true;
    std::function<std::string(bool idle)> take;
    std::function<bool()> ended = [] { return false; };
    std::atomic<int>* num_alive = nullptr;
    std::function<void()>* wake = nullptr;  // where the waking is put
  };
  explicit ScriptedReply(Script script) : script_(std::move(script)) {
    if (script_.num_alive != nullptr) ++*script_.num_alive;
  }
  ~ScriptedReply() override {
    if (script_.num_alive != nullptr) --*script_.num_alive;
  }
  bool streamed() const override { return script_.streamed; }
  void OnChange(std::function<void()> wake) override {
    wake();
    if (script_.wake != nullptr) *script_.wake = std::move(wake);
  }
  std::string Take(bool idle) override { return script_.take(idle); }
  bool ended() const override { return script_.ended(); }
  HttpResponse Whole() override {
    HttpResponse response;
    response.body = "whole";
    return response;
  }

 private:
  Script script_;
};

HttpResponse Text(std::string text) {
  HttpResponse response;
  response.content_type = "text/plain";
  response.body = std::move(text);
  return response;
}

// GET gives "hello", POST what `answer` says: the size of the body where nothing is said.
class TestHandler : public HttpHandler {
 public:
  std::optional<HttpResponse> AnswerHead(const HttpRequest& request) override {
    on_head();
    if (request.method != "POST") return Text("hello");
    if (request.path == "/refused") return Refuse(request, 401, "refused");
    return std::nullopt;
  }
  HttpResponse Answer(const HttpRequest& request) override { return answer(request); }
  HttpResponse Refuse(const HttpRequest&, int status, const std::string& message) override {
    HttpResponse response = Text(message);
    response.status = status;
    return response;
  }

  std::function<void()> on_head = [] {};
  std::function<HttpResponse(const HttpRequest&)> answer = [](const HttpRequest& request) {
    return Text("size " + std::to_string(request.body.size()));
  };
};

class HttpListenerTest : public testing::Test {
 protected:
  void Start(ListenerOptions options = {}) {
    options.port = 0;
    listener_ = std::make_unique<HttpListener>(options, handler_);
    port_ = listener_->Start();
  }
  static std::string Post(const std::string& body, const std::string& headers = {}) {
    return "POST /x HTTP/1.1\r\nHost: a\r\n" + headers +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  static constexpr const char* kGet = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  // A reply that the client has to wait for.
  void AnswerWith(ScriptedReply::Script script) {
    script.num_alive = &num_alive_;
    handler_.answer = [script](const HttpRequest&) {
      HttpResponse response = Text({});
      response.live = std::make_unique<ScriptedReply>(script);
      return response;
    };
  }

  std::atomic<int> num_alive_ = 0;
  TestHandler handler_;
  std::unique_ptr<HttpListener> listener_;
  int port_ = 0;
};

TEST_F(HttpListenerTest, ReadsBodiesOfEveryKind) {
  Start();
  RawClient client(port_);
  client.Send(Post("abc"));
  EXPECT_THAT(client.ReadUntil("size 3"), HasSubstr("HTTP/1.1 200 OK\r\n"));
  client.Send(
      "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "4\r\nabcd\r\n2;x=y\r\nef\r\n0\r\nTrailer: x\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("size 6"), HasSubstr("size 6"));
  client.Send(Post(std::string(300'000, 'x')));
  EXPECT_THAT(client.ReadUntil("size 300000"), HasSubstr("size 300000"));
  client.Send("POST /x HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("size 0"), HasSubstr("size 0"));
  // A client that waits for leave.
  client.Send("POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 7\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("100 Continue"), HasSubstr("HTTP/1.1 100 Continue\r\n\r\n"));
  client.Send("0123456");
  EXPECT_THAT(client.ReadUntil("size 7"), HasSubstr("size 7"));
}

TEST_F(HttpListenerTest, SpeaksTheOlderHttpToo) {
  AnswerWith({.take = [](bool) { return std::string("part"); }, .ended = [] { return true; }});
  Start();
  RawClient client(port_);
  client.Send("POST /x HTTP/1.0\r\nContent-Length: 1\r\n\r\nx");
  const std::string response = client.ReadAll();
  EXPECT_THAT(response, HasSubstr("Connection: close"));
  EXPECT_TRUE(response.ends_with("\r\n\r\npart")) << response;
}

TEST_F(HttpListenerTest, AHeadIsAnsweredWithoutABody) {
  Start();
  RawClient client(port_);
  client.Send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n" + std::string(kGet));
  const std::string response = client.ReadUntil("hello");
  EXPECT_EQ(response.find("Content-Length: 5"), response.find("Content-Length"));
  EXPECT_THAT(response, HasSubstr("\r\n\r\nHTTP/1.1 200 OK"));
}

TEST_F(HttpListenerTest, AClientThatStillSendsSeesWhyItWasRefused) {
  ListenerOptions options;
  options.max_body_bytes = 100'000;
  Start(options);
  const std::string large(5'000'000, 'x');
  for (const std::string& request :
       {Post(large), "POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000\r\n\r\n" + large,
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4C4B40\r\n" + large}) {
    RawClient client(port_);
    client.Send(request);
    client.EndSending();
    const std::string response = client.ReadAll();
    const bool refused = request.starts_with("POST /refused");
    EXPECT_THAT(response, HasSubstr(refused ? " 401 " : " 413 ")) << response;
    EXPECT_THAT(response, HasSubstr("Connection: close"));
  }
  // Asked beforehand, it need not send anything.
  RawClient client(port_);
  client.Send(
      "POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 200000\r\n\r\n");
  client.EndSending();
  EXPECT_TRUE(client.ReadAll().starts_with("HTTP/1.1 413 "));
}

TEST_F(HttpListenerTest, WhatDoesNotComeInTimeIsRefused) {
  ListenerOptions options;
  options.time_scale = 200;  // 150 ms for 30 s, 375 ms for 75 s
  Start(options);
  RawClient head(port_);
  head.Send("GET / HTTP/1.1\r\nHo");
  RawClient body(port_);
  body.Send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  RawClient idle(port_);
  idle.Send(kGet);
  EXPECT_THAT(head.ReadAll(), HasSubstr(" 408 "));
  EXPECT_THAT(body.ReadAll(), HasSubstr("3 bytes are here"));
  EXPECT_THAT(idle.ReadAll(), HasSubstr("hello"));
  EXPECT_TRUE(WaitFor([&] { return listener_->num_connections() == 0; }, 10'000));
}

TEST_F(HttpListenerTest, LargeBodiesTakeTurns) {
  ListenerOptions options;
  options.max_body_bytes = 100'000;
  Start(options);
  const std::string request = Post(std::string(100'000, 'x'));
  RawClient first(port_);
  first.Send(request.substr(0, 50'000));
  RawClient small(port_);
  RawClient second(port_);
  ASSERT_TRUE(WaitFor([&] { return listener_->num_connections() == 3; }, 10'000));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  second.Send(request);
  small.Send(Post("small"));
  EXPECT_THAT(small.ReadUntil("size 5"), HasSubstr("size 5"));
  EXPECT_EQ(second.ReadFor(100), "");
  first.Send(request.substr(50'000));
  EXPECT_THAT(first.ReadUntil("size 100000"), HasSubstr("size 100000"));
  EXPECT_THAT(second.ReadUntil("size 100000"), HasSubstr("size 100000"));
}

TEST_F(HttpListenerTest, AHeavyRequestHoldsUpNobody) {
  std::promise<void> leave;
  std::shared_future<void> left = leave.get_future().share();
  handler_.answer = [left](const HttpRequest&) {
    left.wait();
    return Text("heavy");
  };
  Start();
  RawClient heavy(port_);
  heavy.Send(Post("x"));
  RawClient other(port_);
  other.Send(kGet);
  EXPECT_THAT(other.ReadUntil("hello"), HasSubstr("hello"));
  leave.set_value();
  EXPECT_THAT(heavy.ReadUntil("heavy"), HasSubstr("heavy"));
}

TEST_F(HttpListenerTest, AFailingHandlerIsAnAnswer) {
  handler_.answer = [](const HttpRequest&) -> HttpResponse {
    throw std::runtime_error("it broke");
  };
  Start();
  RawClient client(port_);
  client.Send(Post("x"));
  EXPECT_THAT(client.ReadUntil("it broke"), HasSubstr(" 500 "));
  handler_.answer = [](const HttpRequest&) -> HttpResponse { throw 7; };
  client.Send(Post("x"));
  EXPECT_THAT(client.ReadUntil(" 503 "), HasSubstr(" 503 "));
  client.Send(kGet);
  EXPECT_THAT(client.ReadUntil("hello"), HasSubstr("hello"));
}

// Whatever allocation fails, on the thread of all connections or on one that reads requests: one
// connection at most is lost.
TEST_F(HttpListenerTest, SurvivesWhenMemoryRunsOut) {
  std::atomic<size_t> num_failures = 0;
  handler_.on_head = [&] { FailAllocations(num_failures); };
  std::atomic<bool> ended = false;
  handler_.answer = [&](const HttpRequest&) {
    FailAllocations(num_failures);
    HttpResponse response = Text({});
    response.live = std::make_unique<ScriptedReply>(ScriptedReply::Script{
        .take = [&](bool) { return std::string("part"); }, .ended = [&] { return ended.load(); }});
    return response;
  };
  Start();
  for (size_t count = 1; count <= 40; ++count) {
    num_failures = count;
    ended = count % 2 == 0;  // some are cut by the client
    for (const std::string& request : {std::string(kGet), Post("x")}) {
      RawClient client(port_);
      client.Send(request);
      client.ReadFor(3);
    }
  }
  num_failures = 0;
  RawClient last(port_);
  // The thread's remaining failures are used up by connections that fail.
  ASSERT_TRUE(WaitFor(
      [&] {
        RawClient client(port_);
        client.Send(kGet);
        return client.ReadUntil("hello").ends_with("hello");
      },
      10'000));
  EXPECT_TRUE(WaitFor([&] { return listener_->num_connections() <= 2; }, 10'000));
}

// What a client does not read is not made, and after a while nobody waits for it.
TEST_F(HttpListenerTest, AClientThatDoesNotReadIsLetGo) {
  ListenerOptions options;
  options.time_scale = 100;  // 300 ms to take 64 kB
  std::atomic<size_t> made = 0;
  AnswerWith({.take = [&](bool) {
    made += 1'000'000;
    return std::string(1'000'000, 'x');
  }});
  Start(options);
  RawClient client(port_);
  client.Send(Post("x"));
  ASSERT_TRUE(WaitFor([&] { return made > 0; }, 10'000));
  EXPECT_TRUE(WaitFor([&] { return num_alive_ == 0; }, 10'000));
  EXPECT_LT(made, 16'000'000u);  // the buffers of the kernel
  EXPECT_TRUE(WaitFor([&] { return listener_->num_connections() == 0; }, 10'000));
}

TEST_F(HttpListenerTest, AHangUpIsNoticedThoughMoreWasSent) {
  for (const bool streamed : {true, false}) {
    AnswerWith({.streamed = streamed, .take = [](bool) { return std::string(); }});
    Start();
    RawClient client(port_);
    client.Send(Post("x") + kGet);
    ASSERT_TRUE(WaitFor([&] { return num_alive_ == 1; }, 10'000));
    client.HangUp();
    EXPECT_TRUE(WaitFor([&] { return num_alive_ == 0; }, 10'000));
  }
}

TEST_F(HttpListenerTest, AnswersFollowOneAnother) {
  std::atomic<int> num_takes = 0;
  AnswerWith({.streamed = false,
              .take =
                  [&](bool) {
                    ++num_takes;
                    return std::string();
                  },
              .ended = [&] { return num_takes > 0; }});
  Start();
  RawClient client(port_);
  client.Send(Post("x") + Post("y") + kGet);
  const std::string response = client.ReadUntil("hello");
  EXPECT_NE(response.find("whole"), response.rfind("whole"));
}

TEST_F(HttpListenerTest, TheIdlestMakesRoom) {
  ListenerOptions options;
  options.max_connections = 2;
  AnswerWith({.take = [](bool) { return std::string(); }});
  Start(options);
  RawClient busy(port_);
  busy.Send(Post("x"));
  ASSERT_TRUE(WaitFor([&] { return num_alive_ == 1; }, 10'000));
  RawClient idle(port_);
  idle.Send(kGet);
  idle.ReadUntil("hello");
  RawClient next(port_);
  next.Send(Post("x"));
  EXPECT_TRUE(WaitFor([&] { return num_alive_ == 2; }, 10'000));
  EXPECT_THAT(idle.ReadAll(), HasSubstr("hello"));  // closed
  // Now both are busy.
  RawClient waiting(port_);
  waiting.Send(kGet);
  EXPECT_EQ(waiting.ReadFor(250), "");
  busy.HangUp();
  EXPECT_THAT(waiting.ReadUntil("hello"), HasSubstr("hello"));
}

double CpuSeconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST_F(HttpListenerTest, WithoutAFileLeftClientsWait) {
  Start();
  RawClient first(port_);
  RawClient second(port_);
  first.Send(kGet);
  first.ReadUntil("hello");
  ASSERT_TRUE(WaitFor([&] { return listener_->num_connections() == 2; }, 10'000));
  RawClient third(port_, RawClient::kLater);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 1;  // those that are open stay open
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  second.Send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");  // not idle
  third.Connect(port_);
  third.Send(kGet);
  const double start = CpuSeconds();
  EXPECT_EQ(third.ReadFor(500), "");
  EXPECT_LT(CpuSeconds() - start, 0.2) << "it spins";
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(third.ReadUntil("hello"), HasSubstr("hello"));
  second.Send("x");
  EXPECT_THAT(second.ReadUntil("size 1"), HasSubstr("size 1"));
}

TEST_F(HttpListenerTest, StopsWhateverItsClientsDo) {
  AnswerWith({.take = [](bool) { return std::string(); }});
  Start();
  RawClient idle(port_);
  RawClient streaming(port_);
  streaming.Send(Post("x"));
  RawClient in_head(port_);
  in_head.Send("GET / HT");
  RawClient in_body(port_);
  in_body.Send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc");
  RawClient refused(port_);
  refused.Send("nonsense\r\n\r\n");
  refused.ReadUntil(" 400 ");
  ASSERT_TRUE(
      WaitFor([&] { return num_alive_ == 1 && listener_->num_connections() == 5; }, 10'000));
  const auto start = std::chrono::steady_clock::now();
  listener_->Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(num_alive_, 0);
  EXPECT_EQ(listener_->num_connections(), 0u);
}

TEST_F(HttpListenerTest, APortHasOneServer) {
  Start();
  ListenerOptions options;
  options.port = port_;
  EXPECT_THROW(HttpListener::CheckAddress(options), Error);
  HttpListener second(options, handler_);
  try {
    second.Start();
    FAIL() << "two servers share a port";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("port " + std::to_string(port_) + ": another program listens there"));
  }
  options.host = "192.0.2.1";  // of no machine: RFC 5737
  HttpListener elsewhere(options, handler_);
  EXPECT_THROW(elsewhere.Start(), Error);
  options.host = "no.such.name.invalid";
  HttpListener nowhere(options, handler_);
  try {
    nowhere.Start();
    FAIL() << "a name without an address";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no address is known by this name"));
  }
}

size_t NumThreads() {
  size_t count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    count += thread.is_directory() ? 1 : 0;
  }
  return count;
}

uint64_t ResidentBytes() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long long size = 0;
  unsigned long long resident = 0;
  if (std::fscanf(file, "%llu %llu", &size, &resident) != 2) resident = 0;
  std::fclose(file);
  return resident * 4096;
}

TEST_F(HttpListenerTest, AThousandStreamsCostNoThreadAndLittleMemory) {
  constexpr size_t kCount = 1000;
  rlimit files = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 2 * kCount + 100) GTEST_SKIP() << "not enough files may be open";

  ListenerOptions options;
  options.max_connections = kCount;
  std::atomic<bool> over = false;
  AnswerWith({.take = [&](bool) { return std::string(over ? "the end" : "begun\n\n"); },
              .ended = [&] { return over.load(); }});
  Start(options);
  const size_t num_threads = NumThreads();
  const uint64_t before = ResidentBytes();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (size_t i = 0; i < kCount; ++i) {
    clients.push_back(std::make_unique<RawClient>(port_));
    clients.back()->Send(Post("x"));
  }
  for (const auto& client : clients) EXPECT_THAT(client->ReadUntil("begun"), HasSubstr("begun"));
  EXPECT_EQ(static_cast<size_t>(num_alive_), kCount);
  EXPECT_EQ(NumThreads(), num_threads);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(ResidentBytes() - before, HttpListener::OwnBytes(kCount));
  RecordProperty("bytes_per_stream", static_cast<int>((ResidentBytes() - before) / kCount));
#else
  static_cast<void>(before);
#endif
  // Each is alive: the next look, at most a second later, finds the end.
  over = true;
  for (const auto& client : clients)
    EXPECT_THAT(client->ReadUntil("the end"), HasSubstr("the end"));
}

}  // namespace
}  // namespace thimble::server
