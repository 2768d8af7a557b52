#include "server/http_server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "base/error.h"
#include "server/access.h"
#include "server/answer_run.h"
#include "server/http_listener.h"
#include "server/page.h"
#include "server/sse.h"

namespace thimble::server {
namespace {

using Clock = std::chrono::steady_clock;
using httplib::Request;
using httplib::Response;

// How soon a client that hung up is noticed, and how long a new token waits at most.
constexpr auto kPoll = std::chrono::milliseconds(250);
// Idle connections: agents pause between their turns.
constexpr time_t kIdleSeconds = 75;
constexpr time_t kReadSeconds = 30;
constexpr time_t kWriteSeconds = 30;
constexpr const char* kJson = "application/json";

Api ApiOf(const std::string& path) {
  const auto has = [&](const char* part) { return path.find(part) != std::string::npos; };
  if (has("/messages")) return Api::kMessages;
  if (has("/responses")) return Api::kResponses;
  if (has("/completions") && !has("/chat/")) return Api::kCompletions;
  return Api::kChat;
}

void SetSocketOptions(socket_t socket) {
  // Without the library's SO_REUSEPORT, by which two servers would share a port unnoticed.
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

void SetError(Response& res, Api api, const ApiError& error) {
  res.status = error.status();
  if (error.status() == 429 || error.status() == 503) res.set_header("Retry-After", "5");
  res.set_content(WriteApiError(api, error), kJson);
}

// Counts the answers that are on their way.
class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& count_;
};

// A streamed answer, as long as its connection lasts.
struct Streamed {
  Streamed(std::atomic<int>& count, Api api, const ServedModel& model, const ApiRequest& request,
           const std::shared_ptr<Job>& job)
      : counted(count), run(api, model, request, job) {}

  Counted counted;
  AnswerRun run;
  Clock::time_point last_write = Clock::now();
  bool begun = false;
};

}  // namespace

class HttpServer::Impl {
 public:
  Impl(HttpOptions options, const ServedModel& model, Backend& backend)
      : options_(std::move(options)), model_(model), backend_(backend) {
    server_.new_task_queue = [n = options_.num_connections] { return new httplib::ThreadPool(n); };
    server_.set_socket_options(SetSocketOptions);
    server_.set_tcp_nodelay(true);
    server_.set_keep_alive_timeout(kIdleSeconds);
    server_.set_keep_alive_max_count(size_t{1} << 20);
    server_.set_read_timeout(kReadSeconds);
    server_.set_write_timeout(kWriteSeconds);
    server_.set_payload_max_length(options_.max_body_bytes);
    server_.set_error_handler([](const Request& req, Response& res) { FillError(req, res); });
    server_.set_exception_handler([](const Request& req, Response& res, const std::exception_ptr&) {
      SetError(res, ApiOf(req.path), ApiError(500, "the server failed; see its log"));
    });
    AddRoutes();
  }

  int Start() {
    const int port = options_.port != 0 ? options_.port : server_.bind_to_any_port(options_.host);
    const bool bound =
        options_.port == 0 ? port > 0 : server_.bind_to_port(options_.host, options_.port);
    if (!bound) {
      throw Error(ErrorCode::kRuntime,
                  "cannot listen on " + options_.host + " port " + std::to_string(options_.port) +
                      ": it is in use, or not an address of this machine; choose another with "
                      "--port or --host");
    }
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return port;
  }

  void Stop(double seconds) {
    stopping_ = true;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (num_answers_ > 0 && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  using Handler = void (Impl::*)(const Request&, Response&) const;

  // Wraps a handler in what every request has to pass.
  httplib::Server::Handler Guarded(Handler handler) const {
    return [this, handler](const Request& req, Response& res) {
      try {
        CheckAccess(req, res);
        (this->*handler)(req, res);
      } catch (const ApiError& error) {
        SetError(res, ApiOf(req.path), error);
      } catch (const std::exception& error) {
        SetError(res, ApiOf(req.path), ApiError(500, error.what()));
      }
    };
  }

  void AddRoutes() {
    server_.Get("/health", [this](const Request&, Response& res) {
      res.status = stopping_ ? 503 : 200;
      res.set_content(stopping_ ? R"({"status":"stopping"})" : R"({"status":"ok"})", kJson);
    });
    server_.Get("/", [this](const Request& req, Response& res) { ShowPage(req, res); });
    server_.Options(R"(/.*)", [this](const Request& req, Response& res) { Preflight(req, res); });
    server_.Get(R"((?:/v1)?/models)", Guarded(&Impl::ListModels));
    server_.Get(R"((?:/v1)?/models/(.+))", Guarded(&Impl::DescribeModel));
    server_.Get("/metrics", Guarded(&Impl::ShowMetrics));
    server_.Post(R"((?:/v1)?/tokenize)", Guarded(&Impl::Tokenize));
    server_.Post(R"((?:/v1)?/detokenize)", Guarded(&Impl::Detokenize));
    server_.Post(R"((?:/v1)?/messages/count_tokens)", Guarded(&Impl::Count));
    for (const char* path : {R"((?:/v1)?/chat/completions)", R"((?:/v1)?/completions)",
                             R"((?:/v1)?/messages)", R"((?:/v1)?/responses)"}) {
      server_.Post(path, Guarded(&Impl::Answer));
    }
  }

  // Errors that the library found by itself.
  static void FillError(const Request& req, Response& res) {
    if (!res.body.empty()) return;
    std::string message = "HTTP status " + std::to_string(res.status);
    if (res.status == 400) message = "the request is no HTTP, not whole, or its head is too long";
    if (res.status == 404) message = "there is no " + req.method + " " + req.path;
    if (res.status == 413) message = "the body is larger than this server takes";
    SetError(res, ApiOf(req.path), ApiError(res.status, message));
  }

  void CheckAccess(const Request& req, Response& res) const {
    AllowOrigin(req, res);
    if (!IsOwnHost(req.get_header_value("Host"), options_.host)) {
      throw ApiError(403, "the Host header names another server");
    }
    const std::string origin = req.get_header_value("Origin");
    if (!origin.empty() && !IsAllowedOrigin(origin, options_.origin)) {
      throw ApiError(403, "pages of " + origin + " may not call this server; see --cors");
    }
    if (options_.api_key.empty()) return;
    std::string key = req.get_header_value("x-api-key");
    const std::string bearer = req.get_header_value("Authorization");
    if (bearer.starts_with("Bearer ")) key = bearer.substr(7);
    if (!EqualInConstantTime(key, options_.api_key)) {
      throw ApiError(401, "the API key is missing or wrong", "invalid_api_key");
    }
  }

  void AllowOrigin(const Request& req, Response& res) const {
    const std::string origin = req.get_header_value("Origin");
    if (origin.empty() || !IsAllowedOrigin(origin, options_.origin)) return;
    res.set_header("Access-Control-Allow-Origin", origin);
    res.set_header("Vary", "Origin");
  }

  void Preflight(const Request& req, Response& res) const {
    AllowOrigin(req, res);
    const std::string asked =
        SanitizedHeaderNames(req.get_header_value("Access-Control-Request-Headers"));
    res.set_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    res.set_header("Access-Control-Allow-Headers",
                   "Authorization, Content-Type" + (asked.empty() ? "" : ", " + asked));
    res.set_header("Access-Control-Max-Age", "600");
    res.status = 204;
  }

  // Needs no key: it asks for one.
  void ShowPage(const Request& req, Response& res) const {
    if (!IsOwnHost(req.get_header_value("Host"), options_.host)) {
      return SetError(res, Api::kChat, ApiError(403, "the Host header names another server"));
    }
    res.set_header("Content-Security-Policy",
                   "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                   "connect-src 'self'; form-action 'self'; base-uri 'none'; "
                   "frame-ancestors 'none'");
    res.set_content(std::string(Page()), "text/html; charset=utf-8");
  }

  Json ModelJson() const {
    return {{"id", model_.name},
            {"object", "model"},
            {"created", model_.created},
            {"owned_by", "thimble"},
            {"max_model_len", model_.context},
            {"context_length", model_.context},
            {"meta", {{"n_ctx", model_.context}}}};
  }
  void ListModels(const Request&, Response& res) const {
    res.set_content(Dump({{"object", "list"}, {"data", Json::array({ModelJson()})}}), kJson);
  }
  void DescribeModel(const Request& req, Response& res) const {
    if (req.matches[1] != model_.name) {
      throw ApiError(404, "there is no model " + req.matches[1].str() + ", only " + model_.name,
                     "model_not_found");
    }
    res.set_content(Dump(ModelJson()), kJson);
  }
  void ShowMetrics(const Request&, Response& res) const {
    std::string text;
    for (const auto& [name, value] : backend_.Metrics()) {
      const bool is_sum = name.ends_with("_total");
      text += "# TYPE " + name + (is_sum ? " counter\n" : " gauge\n");
      text += name + " " + Dump(value) + "\n";
    }
    text += "# TYPE thimble_answers_open gauge\nthimble_answers_open " +
            std::to_string(num_answers_) + "\n";
    res.set_content(text, "text/plain; version=0.0.4");
  }

  static JsonValue Body(const Request& req) {
    try {
      return ParseJson(req.body);
    } catch (const Error& error) {
      throw ApiError(400, std::string("the body is ") + error.what());
    }
  }
  void Tokenize(const Request& req, Response& res) const {
    const JsonValue body = Body(req);
    const JsonValue* content = body.FindSet("content");
    if (content == nullptr) content = body.FindSet("prompt");
    if (content == nullptr || !content->is_string()) {
      throw ApiError(400, "content: expected a string");
    }
    const JsonValue* markup = body.FindSet("parse_special");
    std::vector<TokenId> ids;
    if (markup != nullptr && markup->boolean) {
      model_.tokenizer->EncodeMarkup(content->text, &ids);
    } else {
      model_.tokenizer->Encode(content->text, &ids);
    }
    res.set_content(Dump({{"tokens", ids}, {"count", ids.size()}}), kJson);
  }
  void Detokenize(const Request& req, Response& res) const {
    const JsonValue body = Body(req);
    const JsonValue* tokens = body.FindSet("tokens");
    if (tokens == nullptr || !tokens->is_array()) {
      throw ApiError(400, "tokens: expected an array of ids");
    }
    std::vector<TokenId> ids;
    for (const JsonValue& token : tokens->items) {
      const double id = token.is_integer() ? token.AsDouble() : -1;
      if (!(id >= 0 && id < model_.tokenizer->vocab_size())) {
        throw ApiError(
            400, "tokens: expected ids below " + std::to_string(model_.tokenizer->vocab_size()));
      }
      ids.push_back(static_cast<TokenId>(id));
    }
    res.set_content(Dump({{"content", model_.tokenizer->Decode(ids)}}), kJson);
  }
  void Count(const Request& req, Response& res) const {
    res.set_content(Dump({{"input_tokens", CountTokens(Api::kMessages, req.body, model_)}}), kJson);
  }

  void Answer(const Request& req, Response& res) const {
    const Api api = ApiOf(req.path);
    const ApiRequest request = ReadApiRequest(api, req.body, model_);
    if (!request.notes.empty()) res.set_header("X-Thimble-Note", NoteHeader(request.notes));
    auto job = std::make_shared<Job>(request.job);
    if (stopping_) throw ApiError(503, "the server is shutting down");
    if (!backend_.Submit(job)) {
      throw ApiError(429, "too many requests wait already; try again later");
    }
    if (request.stream) {
      StreamAnswer(std::make_shared<Streamed>(num_answers_, api, model_, request, job), res);
    } else {
      WholeAnswer(api, request, job, res);
    }
  }

  void WholeAnswer(Api api, const ApiRequest& request, const std::shared_ptr<Job>& job,
                   Response& res) const {
    const Counted counted(num_answers_);
    AnswerRun run(api, model_, request, job);
    while (run.Step(kPoll)) {
      if (HttpListener::PeerGone()) throw ApiError(499, "the client closed the connection");
    }
    if (!run.error().empty()) throw ApiError(500, run.error());
    res.set_content(run.Whole(), kJson);
  }

  void StreamAnswer(const std::shared_ptr<Streamed>& streamed, Response& res) const {
    res.set_header("Cache-Control", "no-cache, no-transform");
    res.set_header("X-Accel-Buffering", "no");
    res.set_chunked_content_provider(
        "text/event-stream; charset=utf-8",
        [this, streamed](size_t, httplib::DataSink& sink) { return WriteNext(*streamed, sink); });
  }

  // One step of a stream: the beginning at once, then what has come, or a sign of life.
  bool WriteNext(Streamed& streamed, httplib::DataSink& sink) const {
    AnswerRun& run = streamed.run;
    if (streamed.begun) {
      run.Step(kPoll);
      if (HttpListener::PeerGone()) return false;
    }
    streamed.begun = true;
    std::string text = run.Take();
    const double idle = std::chrono::duration<double>(Clock::now() - streamed.last_write).count();
    if (text.empty() && idle * options_.time_scale >= options_.keep_alive_seconds) {
      text = run.KeepAlive();
    }
    if (!text.empty()) {
      if (!sink.write(text.data(), text.size())) return false;
      streamed.last_write = Clock::now();
    }
    if (run.ended()) sink.done();
    return true;
  }

  const HttpOptions options_;
  const ServedModel& model_;
  Backend& backend_;
  std::atomic<bool> stopping_ = false;
  mutable std::atomic<int> num_answers_ = 0;  // counted, which changes no answer
  HttpListener server_;
  std::thread thread_;
};

HttpServer::HttpServer(const HttpOptions& options, const ServedModel& model, Backend& backend)
    : impl_(std::make_unique<Impl>(options, model, backend)) {}
HttpServer::~HttpServer() { impl_->Stop(0); }
int HttpServer::Start() { return impl_->Start(); }
void HttpServer::Stop(double seconds) { impl_->Stop(seconds); }

}  // namespace thimble::server
