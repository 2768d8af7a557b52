#include "server/http_connection.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "server/api.h"
#include "server/content_coding.h"

namespace thimble::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMaxHeadBytes = 64 << 10;
constexpr size_t kFirstBytes = 512;
constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kWriteBytes = 64 << 10;
// What of a head or a body every connection may hold beside the room that all share.
constexpr size_t kFreeBytes = 8 << 10;
// Idle connections: agents pause between their turns.
constexpr seconds kIdleTime(75);
constexpr seconds kHeadTime(30);
constexpr seconds kReadTime(30);
constexpr seconds kWriteTime(30);
constexpr seconds kRoomTime(60);
// A body may take longer than one that comes at this rate, by kReadTime: until then others wait.
constexpr size_t kLeastBytesPerSecond = 64 << 10;
// For what a client still sends after it was refused: if its bytes were left unread, it would see a
// reset connection instead of the reason.
constexpr seconds kRestTime(10);
// How soon a client that hangs up is noticed where it has sent its next request already.
constexpr milliseconds kPoll(250);
constexpr seconds kLongestPause(1);

bool IsTokenCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

// The place after the empty line that ends a head. A bare line feed is no proper end, but nothing
// that follows would make the head valid either.
size_t HeadEnd(std::string_view text) {
  const size_t proper = text.find("\r\n\r\n");
  const size_t bare = text.find("\n\n");
  if (proper == std::string_view::npos && bare == std::string_view::npos) return 0;
  return std::min(proper == std::string_view::npos ? bare : proper + 2, bare) + 2;
}

// Tries until there is memory for it: whoever waits for `handler` would wait forever.
template <typename F>
void PostSurely(asio::io_context& io, F handler) {
  while (true) {
    try {
      return asio::post(io, handler);
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
}

std::string_view TextOf(const boost::beast::flat_buffer& buffer) {
  return {static_cast<const char*>(buffer.data().data()), buffer.size()};
}

}  // namespace

// A request while it is read and answered.
struct HttpConnection::Request {
  Request() {
    parser.header_limit(kMaxHeadBytes);
    parser.body_limit(boost::none);
    parser.eager(false);
  }

  // Copies the head out of the parser. Returns what is wrong with it; empty: nothing.
  std::string TakeHead() {
    const auto& head = parser.get();
    message.method = head.method_string();
    message.target = head.target();
    message.path = PlainPath(message.target);
    for (const auto& field : head) {
      message.headers.push_back({field.name_string(), field.value()});
    }
    if (head.count(http::field::host) > 1) return "more than one Host";
    const auto coding = head[http::field::transfer_encoding];
    if (!coding.empty() && !boost::beast::iequals(coding, "chunked")) {
      return "Transfer-Encoding: expected chunked";
    }
    if (!coding.empty() && head.count(http::field::content_length) > 0) {
      return "both Content-Length and Transfer-Encoding";
    }
    is_valid = true;
    return {};
  }

  bool keeps_alive() const { return is_valid && parser.get().keep_alive(); }
  bool is_chunked() const { return parser.get().version() >= 11; }

  http::request_parser<http::string_body> parser;
  HttpRequest message;
  bool is_valid = false;  // the head has been understood
  std::unique_ptr<BodyRoom::Claim> claim;
};

HttpConnection::HttpConnection(asio::ip::tcp::socket socket, ConnectionContext& context)
    : context_(context),
      socket_(std::move(socket)),
      deadline_timer_(context.io),
      pause_(context.io) {
  context_.open.insert(this);
}

HttpConnection::~HttpConnection() {
  context_.open.erase(this);
  context_.on_end();
}

void HttpConnection::Start() {
  const auto self = shared_from_this();
  asio::co_spawn(
      context_.io, [self] { return self->Run(); }, asio::detached);
}

void HttpConnection::Close() {
  closing_ = true;
  error_code ignored;
  socket_.close(ignored);
  pause_.cancel();
}

void HttpConnection::CancelIo() {
  error_code ignored;
  socket_.cancel(ignored);
}

// From then on, what the socket is asked for fails, with timed_out_.
void HttpConnection::SetDeadline(Clock::time_point deadline) {
  deadline_ = deadline;
  timed_out_ = false;
  if (deadline_ >= alarm_) return;  // the alarm looks at deadline_ when it goes off
  alarm_ = deadline_;
  deadline_timer_.expires_at(alarm_);
  deadline_timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error) return;
    self->alarm_ = Clock::time_point::max();
    if (Clock::now() < self->deadline_) return self->SetDeadline(self->deadline_);
    self->timed_out_ = true;
    self->CancelIo();
  });
}

HttpConnection::Clock::duration HttpConnection::Scaled(milliseconds time) const {
  return std::chrono::duration_cast<Clock::duration>(time / context_.options.time_scale);
}

HttpConnection::Awaitable<void> HttpConnection::Run() {
  // Out of memory, for one: this connection ends, the others go on.
  try {
    co_await Serve();
  } catch (const std::exception&) {
    closing_ = true;
  }
  Close();
  deadline_timer_.cancel();
}

HttpConnection::Awaitable<void> HttpConnection::Serve() {
  bool goes_on = true;
  while (goes_on && !closing_) goes_on = co_await ServeOne();
}

// False where the connection is to end.
HttpConnection::Awaitable<bool> HttpConnection::ServeOne() {
  const bool comes = co_await AwaitRequest();
  if (!comes) co_return false;
  const auto request = std::make_unique<Request>();
  const bool has_head = co_await ReadHead(*request);
  if (!has_head) co_return false;
  std::optional<HttpResponse> early = context_.handler.AnswerHead(request->message);
  const bool has_body = !request->parser.is_done();
  if (early && has_body) {
    // Its body is not read, so nothing that follows can be.
    request->is_valid = false;
    co_await Respond(*request, std::move(*early));
    co_await SkipRest();
    co_return false;
  }
  if (!early) {
    const bool has_all = co_await ReadBody(*request);
    if (!has_all || closing_) co_return false;
    early = co_await CallHandler(*request);
    request->claim.reset();
  }
  const bool written = co_await Respond(*request, std::move(*early));
  co_return written && request->keeps_alive();
}

// Waits for the first bytes of a request, with little memory for what may never come.
HttpConnection::Awaitable<bool> HttpConnection::AwaitRequest() {
  if (input_.size() > 0) co_return true;
  input_.shrink_to_fit();
  idle_since_ = Clock::now();
  SetDeadline(Clock::now() + Scaled(kIdleTime));
  error_code error;
  const size_t count = co_await socket_.async_read_some(
      input_.prepare(kFirstBytes), asio::redirect_error(asio::use_awaitable, error));
  idle_since_.reset();
  if (error) co_return false;
  input_.commit(count);
  co_return true;
}

HttpConnection::Awaitable<bool> HttpConnection::ReadHead(Request& request) {
  SetDeadline(Clock::now() + Scaled(kHeadTime));
  size_t end = 0;
  while (end == 0) {
    while (TextOf(input_).starts_with("\r\n")) input_.consume(2);
    const std::string_view text = TextOf(input_);
    if (!text.empty() && text[0] != '\r' && !IsTokenCharacter(text[0])) {
      const bool is_tls = text[0] == '\x16';
      co_return co_await Refuse(request, 400,
                                is_tls ? "this server speaks no TLS: use http://, not https://"
                                       : "the request is not HTTP");
    }
    end = HeadEnd(text);
    if (end > kMaxHeadBytes || (end == 0 && text.size() >= kMaxHeadBytes)) {
      co_return co_await Refuse(
          request, 431, fmt::format("the request line and headers exceed {} bytes", kMaxHeadBytes));
    }
    if (end > 0) break;
    if (text.size() >= kFreeBytes && request.claim == nullptr) {
      const bool has_room = co_await Claim(request, 2 * kMaxHeadBytes);
      if (!has_room) co_return false;
      SetDeadline(Clock::now() + Scaled(kHeadTime));
    }
    error_code error;
    const size_t count = co_await socket_.async_read_some(
        input_.prepare(kReadBytes), asio::redirect_error(asio::use_awaitable, error));
    if (error && timed_out_) {
      co_return co_await Refuse(request, 408, "the request's head did not come in time");
    }
    if (error) co_return false;
    input_.commit(count);
  }
  error_code error;
  input_.consume(request.parser.put(asio::buffer(input_.data(), end), error));
  std::string fault = error ? error.message() : std::string();
  if (!error) fault = request.TakeHead();
  if (fault.empty()) co_return true;
  co_return co_await Refuse(request, 400, "the request is not valid HTTP: " + fault);
}

HttpConnection::Awaitable<bool> HttpConnection::ReadBody(Request& request) {
  if (request.parser.is_done()) co_return true;
  const size_t limit = context_.options.max_body_bytes;
  const auto length = request.parser.content_length();
  if (length && *length > limit) {
    co_return co_await Refuse(
        request, 413,
        fmt::format("the body has {} bytes; this server takes at most {}", *length, limit));
  }
  const bool known = length && request.message.Header("Content-Encoding").empty();
  const size_t bytes = known ? static_cast<size_t>(*length) : limit;
  if (bytes > kFreeBytes) {
    const bool has_room = co_await Claim(request, bytes);
    if (!has_room) co_return false;
    input_.reserve(kReadBytes);
  }
  const std::string_view expects = request.message.Header("Expect");
  if (!expects.empty() && input_.size() == 0) {
    const bool sent = co_await Write("HTTP/1.1 100 Continue\r\n\r\n");
    if (!sent) co_return false;
  }
  const auto end =
      Clock::now() + Scaled(kReadTime) + Scaled(milliseconds(1000 * bytes / kLeastBytesPerSecond));
  while (!request.parser.is_done()) {
    SetDeadline(std::min(end, Clock::now() + Scaled(kReadTime)));
    const bool goes_on = co_await ReadSome(request);
    if (!goes_on) co_return false;
  }
  request.message.body = std::move(request.parser.get().body());
  co_return true;
}

// A part of the body.
HttpConnection::Awaitable<bool> HttpConnection::ReadSome(Request& request) {
  error_code error;
  co_await http::async_read_some(socket_, input_, request.parser,
                                 asio::redirect_error(asio::use_awaitable, error));
  const size_t size = request.parser.get().body().size();
  const size_t limit = context_.options.max_body_bytes;
  if (size > limit) {
    co_return co_await Refuse(
        request, 413,
        fmt::format("the body has more than {} bytes, the most this server takes", limit));
  }
  if (!error) co_return true;
  if (timed_out_) {
    co_return co_await Refuse(
        request, 408, fmt::format("the body did not come in time: {} bytes are here", size));
  }
  if (error.category() != http::make_error_code(http::error::end_of_stream).category()) {
    co_return false;
  }
  co_return co_await Refuse(
      request, 400, fmt::format("the body is not whole or not valid HTTP: {}", error.message()));
}

// Waits for room for `bytes`, of which it holds none meanwhile: two that hold some and wait for
// more would wait for each other.
HttpConnection::Awaitable<bool> HttpConnection::Claim(Request& request, size_t bytes) {
  request.claim.reset();
  request.claim = context_.room.Take(bytes, [this] { Notice(); });
  const auto end = Clock::now() + Scaled(kRoomTime);
  while (!request.claim->granted()) {
    if (closing_) co_return false;
    if (Clock::now() > end) {
      co_return co_await Refuse(request, 503, "too many large requests come at once; try again");
    }
    co_await Pause(kLongestPause);
  }
  co_return true;
}

struct HttpConnection::Outcome {
  HttpResponse response;
  bool done = false;  // set on the I/O thread
};

// On a worker: reading a long request must not hold up the streams of others.
HttpConnection::Awaitable<HttpResponse> HttpConnection::CallHandler(Request& request) {
  const auto outcome = std::make_shared<Outcome>();
  // This coroutine keeps the connection, and waits until the I/O thread has the outcome.
  asio::post(context_.workers, [this, &request, outcome] {
    outcome->response = Handled(request);
    PostSurely(context_.io, [this, outcome] {
      outcome->done = true;
      Notice();
    });
  });
  while (!outcome->done) co_await Pause(kLongestPause);
  co_return std::move(outcome->response);
}

// Never throws: nothing would catch it.
HttpResponse HttpConnection::Handled(Request& request) noexcept {
  try {
    try {
      HttpRequest& message = request.message;
      message.body = DecodeBody(message.Header("Content-Encoding"), std::move(message.body),
                                context_.options.max_body_bytes);
      return context_.handler.Answer(message);
    } catch (const ApiError& error) {
      return context_.handler.Refuse(request.message, error.status(), error.what());
    } catch (const std::exception& error) {
      return context_.handler.Refuse(request.message, 500, error.what());
    }
  } catch (...) {
    return HttpResponse{503, "application/json", {}, {}, nullptr};
  }
}

// False where the connection is to end.
HttpConnection::Awaitable<bool> HttpConnection::Respond(const Request& request,
                                                        HttpResponse response) {
  // Lives until its last byte has been written: the server counts answers by these.
  const std::unique_ptr<LiveReply> live = std::move(response.live);
  if (live != nullptr) live->OnChange([this] { Wake(); });
  if (live != nullptr && live->streamed()) {
    co_return co_await Stream(request, HeadOf(request, response, true), *live);
  }
  if (live != nullptr) {
    const bool is_made = co_await AwaitReply(*live);
    if (!is_made) co_return false;
    HttpResponse whole = live->Whole();
    // What was said of the request holds for its answer.
    whole.headers.insert(whole.headers.begin(), response.headers.begin(), response.headers.end());
    response = std::move(whole);
  }
  std::string text = HeadOf(request, response, false);
  if (request.message.method != "HEAD") text += response.body;
  response.body = {};
  co_return co_await Write(text);
}

// False where the client hung up.
HttpConnection::Awaitable<bool> HttpConnection::AwaitReply(LiveReply& live) {
  bool ended = false;
  while (!ended) {
    live.Take(false);
    ended = live.ended();
    if (!ended) co_await PauseAndWatch(kLongestPause);
    if (gone_ || closing_) co_return false;
  }
  co_await EndWatch();
  co_return true;
}

HttpConnection::Awaitable<bool> HttpConnection::Stream(const Request& request, std::string text,
                                                       LiveReply& live) {
  const bool chunked = request.is_chunked();
  const auto keep_alive = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
      context_.options.keep_alive_seconds / context_.options.time_scale));
  auto last_write = Clock::now();
  bool ended = false;
  while (!ended) {
    const std::string part = live.Take(Clock::now() - last_write >= keep_alive);
    ended = live.ended();
    if (!part.empty()) text += chunked ? fmt::format("{:x}\r\n{}\r\n", part.size(), part) : part;
    if (ended && chunked) text += "0\r\n\r\n";
    if (!text.empty()) {
      const bool written = co_await Write(text);
      if (!written) co_return false;
      last_write = Clock::now();
      text.clear();
    }
    if (!ended) {
      co_await PauseAndWatch(std::min<Clock::duration>(
          kLongestPause, std::max(last_write + keep_alive - Clock::now(), Clock::duration(1))));
    }
    if (gone_ || closing_) co_return false;
  }
  co_await EndWatch();
  co_return chunked;
}

// The client has to take each part in time: what it does not take is not made in memory.
HttpConnection::Awaitable<bool> HttpConnection::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t size = std::min(bytes.size(), kWriteBytes);
    SetDeadline(Clock::now() + Scaled(kWriteTime));
    error_code error;
    co_await asio::async_write(socket_, asio::buffer(bytes.data(), size),
                               asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return false;
    bytes.remove_prefix(size);
  }
  SetDeadline(Clock::time_point::max());
  co_return true;
}

// Answers what cannot be served, after which the connection ends: false.
HttpConnection::Awaitable<bool> HttpConnection::Refuse(Request& request, int status,
                                                       std::string message) {
  request.is_valid = false;
  const HttpResponse response = context_.handler.Refuse(request.message, status, message);
  const std::string text = HeadOf(request, response, false) + response.body;
  const bool written = co_await Write(text);
  if (written) co_await SkipRest();
  co_return false;
}

HttpConnection::Awaitable<void> HttpConnection::SkipRest() {
  error_code error;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, error);
  SetDeadline(Clock::now() + Scaled(kRestTime));
  input_.consume(input_.size());
  while (!error) {
    co_await socket_.async_read_some(input_.prepare(kReadBytes),
                                     asio::redirect_error(asio::use_awaitable, error));
  }
}

std::string HttpConnection::HeadOf(const Request& request, const HttpResponse& response,
                                   bool is_stream) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(response.status));
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", response.status,
                                 std::string_view(reason.data(), reason.size()));
  for (const auto& [name, value] : response.headers) head += fmt::format("{}: {}\r\n", name, value);
  if (response.status != 204) head += fmt::format("Content-Type: {}\r\n", response.content_type);
  if (is_stream && request.is_chunked()) head += "Transfer-Encoding: chunked\r\n";
  if (!is_stream && response.status != 204) {
    head += fmt::format("Content-Length: {}\r\n", response.body.size());
  }
  const bool ends = !request.keeps_alive() || (is_stream && !request.is_chunked());
  return head + (ends ? "Connection: close\r\n\r\n" : "Connection: keep-alive\r\n\r\n");
}

// Waits for something to happen.
HttpConnection::Awaitable<void> HttpConnection::Pause(Clock::duration longest) {
  if (!std::exchange(noticed_, false)) {
    pause_.expires_after(longest);
    error_code error;
    co_await pause_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    noticed_ = false;
  }
}

// The same, while the client may hang up. Where it has sent its next request already, its socket is
// readable all the time and has to be looked at again and again.
HttpConnection::Awaitable<void> HttpConnection::PauseAndWatch(Clock::duration longest) {
  if (!watching_ && !readable_) Watch();
  co_await Pause(readable_ ? std::min<Clock::duration>(longest, kPoll) : longest);
  if (readable_ && HungUp()) gone_ = true;
}

void HttpConnection::Watch() {
  watching_ = true;
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this()](const error_code& error) {
                       self->watching_ = false;
                       self->readable_ = !error;
                       self->Notice();
                     });
}

HttpConnection::Awaitable<void> HttpConnection::EndWatch() {
  if (watching_) CancelIo();
  while (watching_) co_await Pause(kLongestPause);
  readable_ = false;
}

bool HttpConnection::HungUp() {
  pollfd wait = {socket_.native_handle(), POLLRDHUP, 0};
  return ::poll(&wait, 1, 0) != 0;
}

// On the I/O thread: ends the present pause, or keeps the next from beginning.
void HttpConnection::Notice() {
  noticed_ = true;
  pause_.cancel();
}

// The same from any thread.
void HttpConnection::Wake() {
  if (wake_posted_.exchange(true)) return;
  try {
    asio::post(context_.io, [self = shared_from_this()] {
      self->wake_posted_ = false;
      self->Notice();
    });
  } catch (const std::exception&) {
    wake_posted_ = false;  // no memory: the longest pause ends by itself
  }
}

}  // namespace thimble::server
