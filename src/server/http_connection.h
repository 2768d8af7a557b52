#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "server/body_room.h"
#include "server/http_listener.h"
#include "server/http_message.h"

namespace thimble::server {

class HttpConnection;

/// What all connections of a listener share. Except for `workers`, used by the I/O thread alone.
struct ConnectionContext {
  const ListenerOptions& options;
  HttpHandler& handler;
  boost::asio::io_context& io;
  boost::asio::io_context& workers;
  BodyRoom room;
  std::set<HttpConnection*> open;
  std::function<void()> on_end;  // a connection has ended
};

/// One client: reads its requests one after another and answers each. Lives on the I/O thread, as a
/// coroutine that keeps it alive.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Clock = std::chrono::steady_clock;

  HttpConnection(boost::asio::ip::tcp::socket socket, ConnectionContext& context);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  /// Begins to serve.
  void Start();
  /// Ends soon, whatever it is doing.
  void Close();
  /// Since when it has been waiting for a request; absent: it is not.
  std::optional<Clock::time_point> idle_since() const { return idle_since_; }

 private:
  template <typename T>
  using Awaitable = boost::asio::awaitable<T>;
  struct Request;
  struct Outcome;

  Awaitable<void> Run();
  Awaitable<void> Serve();
  Awaitable<bool> ServeOne();
  Awaitable<bool> AwaitRequest();
  Awaitable<bool> ReadHead(Request& request);
  Awaitable<bool> ReadBody(Request& request);
  Awaitable<bool> ReadSome(Request& request);
  Awaitable<bool> Claim(Request& request, size_t bytes);
  Awaitable<HttpResponse> CallHandler(Request& request);
  HttpResponse Handled(Request& request) noexcept;
  Awaitable<bool> Respond(const Request& request, HttpResponse response);
  Awaitable<bool> AwaitReply(LiveReply& live);
  Awaitable<bool> Stream(const Request& request, std::string text, LiveReply& live);
  Awaitable<bool> Write(std::string_view bytes);
  Awaitable<bool> Refuse(Request& request, int status, std::string message);
  Awaitable<void> SkipRest();
  Awaitable<void> Pause(Clock::duration longest);
  Awaitable<void> PauseAndWatch(Clock::duration longest);
  Awaitable<void> EndWatch();

  static std::string HeadOf(const Request& request, const HttpResponse& response, bool is_stream);
  Clock::duration Scaled(std::chrono::milliseconds time) const;
  void CancelIo();
  void SetDeadline(Clock::time_point deadline);
  void Watch();
  bool HungUp();
  void Notice();
  void Wake();

  ConnectionContext& context_;
  boost::asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer input_;
  boost::asio::steady_timer deadline_timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point alarm_ = Clock::time_point::max();  // when the timer goes off
  bool timed_out_ = false;
  boost::asio::steady_timer pause_;  // cancelled when something happens; members say what
  std::atomic<bool> wake_posted_ = false;
  bool noticed_ = false;   // something happened while there was no pause
  bool watching_ = false;  // a wait for readability is under way
  bool readable_ = false;  // it ended: the client hung up, or sent more
  bool gone_ = false;      // the client hung up
  bool closing_ = false;
  std::optional<Clock::time_point> idle_since_;
};

}  // namespace thimble::server
