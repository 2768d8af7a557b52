#include "server/http_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "base/byte_size.h"
#include "server/access.h"
#include "server/http_listener.h"
#include "server/live_answer.h"
#include "server/model_endpoints.h"
#include "server/page.h"
#include "server/routes.h"

namespace thimble::server {
namespace {

using Clock = std::chrono::steady_clock;

// Of a body: its text, and the values and ids made of it, several times as large.
constexpr uint64_t kBodyFactor = 16;
constexpr uint64_t kLeastBodyBytes = 256 * kKiB;
// Of each token that a job may hold: its id in the prompt, the history and the session, and the
// text of its answer while that is put together.
constexpr uint64_t kTokenBytes = 32;
// What a message quotes of a header.
constexpr size_t kQuotedBytes = 100;

std::string Quoted(std::string_view value) {
  return value.size() <= kQuotedBytes ? std::string(value)
                                      : fmt::format("{}...", value.substr(0, kQuotedBytes));
}

bool NeedsBody(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kTokenize:
    case Endpoint::kDetokenize:
    case Endpoint::kCountTokens:
    case Endpoint::kGenerate:
      return true;
    default:
      return false;
  }
}

HttpResponse JsonResponse(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

HttpResponse PageResponse() {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.headers.push_back(
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
       "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"});
  response.body = Page();
  return response;
}

ListenerOptions ListenerOptionsOf(const HttpOptions& options) {
  ListenerOptions listener;
  listener.host = options.host;
  listener.port = options.port;
  listener.max_connections = options.num_connections;
  listener.max_body_bytes = options.max_body_bytes;
  listener.keep_alive_seconds = options.keep_alive_seconds;
  listener.time_scale = options.time_scale;
  return listener;
}

}  // namespace

class HttpServer::Impl : public HttpHandler {
 public:
  Impl(HttpOptions options, const ServedModel& model, Backend& backend)
      : options_(std::move(options)),
        model_(model),
        backend_(backend),
        access_({options_.host, NamesOfThisMachine(), options_.allowed_hosts, options_.origin}),
        listener_(ListenerOptionsOf(options_), *this) {}

  int Start() { return listener_.Start(); }

  void Stop(double seconds) {
    stopping_ = true;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (num_answers_ > 0 && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    listener_.Stop();
  }

  std::optional<HttpResponse> AnswerHead(const HttpRequest& request) override {
    if (request.method == "OPTIONS") return Preflight(request);
    return Guarded(request, [&]() -> std::optional<HttpResponse> {
      const Endpoint endpoint = FindEndpoint(request);
      CheckAccess(request, endpoint);
      if (NeedsBody(endpoint)) return std::nullopt;
      return Show(request, endpoint);
    });
  }

  HttpResponse Answer(const HttpRequest& request) override {
    return *Guarded(request, [&]() -> std::optional<HttpResponse> {
      const Endpoint endpoint = FindEndpoint(request);
      if (request.body.empty()) throw ApiError(400, "the body is empty: expected JSON");
      return AnswerBody(request, endpoint);
    });
  }

  HttpResponse Refuse(const HttpRequest& request, int status, const std::string& message) override {
    HttpResponse response = ErrorResponse(ApiOf(request.path), ApiError(status, message));
    AllowOrigin(request, response);
    return response;
  }

 private:
  // What `answer` gives or throws, with the headers that a page needs to read it.
  template <typename F>
  std::optional<HttpResponse> Guarded(const HttpRequest& request, const F& answer) const {
    const Api api = ApiOf(request.path);
    std::optional<HttpResponse> response;
    try {
      response = answer();
    } catch (const ApiError& error) {
      response = ErrorResponse(api, error);
      if (error.status() == 405) {
        response->headers.push_back({"Allow", AllowedMethods(request.path)});
      }
    } catch (const std::bad_alloc&) {
      response = ErrorResponse(api, ApiError(503, "no memory is left for this request"));
    } catch (const std::exception& error) {
      response = ErrorResponse(api, ApiError(500, error.what()));
    }
    if (response) AllowOrigin(request, *response);
    return response;
  }

  void CheckAccess(const HttpRequest& request, Endpoint endpoint) const {
    if (endpoint == Endpoint::kHealth) return;
    const std::string_view host = request.Header("Host");
    if (!access_.AllowsHost(host)) {
      throw ApiError(403, fmt::format("the Host header is {0}, which this server does not know as "
                                      "its own name; if it is, start the server with "
                                      "--allow-host {0}",
                                      Quoted(host)));
    }
    // The page needs no key: it asks for one.
    if (endpoint == Endpoint::kPage) return;
    const std::string_view origin = request.Header("Origin");
    if (!origin.empty() && !access_.AllowsOrigin(origin, host)) {
      throw ApiError(403, fmt::format("the Origin header is {0}: pages of other sites may not call "
                                      "this server unless it is started with --cors {0}",
                                      Quoted(origin)));
    }
    if (options_.api_key.empty()) return;
    std::string_view key = request.Header("x-api-key");
    const std::string_view bearer = request.Header("Authorization");
    if (bearer.starts_with("Bearer ")) key = bearer.substr(7);
    if (!EqualInConstantTime(key, options_.api_key)) {
      throw ApiError(401, "the API key is missing or wrong", "invalid_api_key");
    }
  }

  void AllowOrigin(const HttpRequest& request, HttpResponse& response) const {
    const std::string_view origin = request.Header("Origin");
    if (origin.empty() || !access_.AllowsOrigin(origin, request.Header("Host"))) return;
    response.headers.push_back({"Access-Control-Allow-Origin", std::string(origin)});
    response.headers.push_back({"Access-Control-Expose-Headers", "X-Thimble-Note, Retry-After"});
    response.headers.push_back({"Vary", "Origin"});
  }

  HttpResponse Preflight(const HttpRequest& request) const {
    HttpResponse response;
    response.status = 204;
    AllowOrigin(request, response);
    const std::string asked =
        SanitizedHeaderNames(request.Header("Access-Control-Request-Headers"));
    const std::string allowed = AllowedMethods(request.path);
    response.headers.push_back({"Allow", allowed.empty() ? "GET, HEAD, POST, OPTIONS" : allowed});
    response.headers.push_back({"Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"});
    response.headers.push_back(
        {"Access-Control-Allow-Headers",
         "Authorization, Content-Type" + (asked.empty() ? "" : ", " + asked)});
    response.headers.push_back({"Access-Control-Max-Age", "600"});
    // A page of the web asks for this before it may call an address of a private network.
    if (request.Header("Access-Control-Request-Private-Network") == "true") {
      response.headers.push_back({"Access-Control-Allow-Private-Network", "true"});
    }
    return response;
  }

  // What needs no body.
  HttpResponse Show(const HttpRequest& request, Endpoint endpoint) const {
    HttpResponse response;
    switch (endpoint) {
      case Endpoint::kHealth:
        response.status = stopping_ ? 503 : 200;
        response.body = stopping_ ? R"({"status":"stopping"})" : R"({"status":"ok"})";
        return response;
      case Endpoint::kModels:
        return JsonResponse(ListModels(model_));
      case Endpoint::kModel:
        return JsonResponse(DescribeModel(model_, request.path.substr(sizeof("/models"))));
      case Endpoint::kMetrics:
        response.content_type = "text/plain; version=0.0.4";
        response.body = WriteMetrics(Metrics());
        return response;
      default:
        return PageResponse();
    }
  }

  std::vector<std::pair<std::string, double>> Metrics() const {
    std::vector<std::pair<std::string, double>> metrics = backend_.Metrics();
    metrics.emplace_back("thimble_answers_open", static_cast<double>(num_answers_));
    metrics.emplace_back("thimble_connections_open",
                         static_cast<double>(listener_.num_connections()));
    return metrics;
  }

  HttpResponse AnswerBody(const HttpRequest& request, Endpoint endpoint) {
    switch (endpoint) {
      case Endpoint::kTokenize:
        return JsonResponse(Tokenize(model_, request.body));
      case Endpoint::kDetokenize:
        return JsonResponse(Detokenize(model_, request.body));
      case Endpoint::kCountTokens:
        return JsonResponse(fmt::format("{{\"input_tokens\":{}}}",
                                        CountTokens(Api::kMessages, request.body, model_)));
      default:
        return Generate(ApiOf(request.path), request.body);
    }
  }

  HttpResponse Generate(Api api, const std::string& body) {
    const ApiRequest request = ReadApiRequest(api, body, model_);
    if (stopping_) throw ApiError(503, "the server is shutting down");
    auto live = std::make_unique<LiveAnswer>(api, model_, request, backend_, num_answers_);
    HttpResponse response;
    if (!request.notes.empty()) {
      response.headers.push_back({"X-Thimble-Note", NoteHeader(request.notes)});
    }
    if (request.stream) {
      response.content_type = "text/event-stream; charset=utf-8";
      response.headers.push_back({"Cache-Control", "no-cache, no-transform"});
      response.headers.push_back({"X-Accel-Buffering", "no"});
    }
    response.live = std::move(live);
    return response;
  }

  const HttpOptions options_;
  const ServedModel& model_;
  Backend& backend_;
  const AccessPolicy access_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> num_answers_ = 0;
  HttpListener listener_;
};

HttpServer::HttpServer(const HttpOptions& options, const ServedModel& model, Backend& backend)
    : impl_(std::make_unique<Impl>(options, model, backend)) {}
HttpServer::~HttpServer() {
  try {
    impl_->Stop(0);
  } catch (...) {
    std::terminate();  // no memory is left to stop the threads with
  }
}
int HttpServer::Start() { return impl_->Start(); }
void HttpServer::CheckAddress(const HttpOptions& options) {
  HttpListener::CheckAddress(ListenerOptionsOf(options));
}
void HttpServer::Stop(double seconds) { impl_->Stop(seconds); }

uint64_t HttpServer::OwnBytes(const HttpOptions& options, size_t num_jobs, size_t context) {
  return HttpListener::OwnBytes(options.num_connections) + kBodyFactor * options.max_body_bytes +
         kTokenBytes * num_jobs * context;
}

size_t HttpServer::MaxBodyBytes(uint64_t budget_bytes) {
  return std::max(budget_bytes / 16 / kBodyFactor, kLeastBodyBytes);
}

std::string UrlOf(const std::string& host, int port) {
  const bool is_v6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return fmt::format("http://{}:{}", is_v6 ? fmt::format("[{}]", host) : host, port);
}

}  // namespace thimble::server
