#include "server/http_listener.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <future>
#include <list>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/start_thread.h"
#include "server/http_connection.h"

namespace thimble::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kNumWorkers = 2;
constexpr int kBacklog = 4096;
// Of the kernel's memory for what a client has not taken yet.
constexpr int kSendBufferBytes = 128 << 10;
constexpr std::chrono::milliseconds kRetryAccept(100);
// What a thread touches of its stack and allocator.
constexpr uint64_t kThreadBytes = 256 * kKiB;
// Of a connection: its coroutines, parser, buffers, a head and a part of an answer.
constexpr uint64_t kConnectionBytes = 48 * kKiB;

std::string ListenFault(const std::string& host, int port, const error_code& error) {
  const std::string place = fmt::format("cannot listen on {} port {}: ", host, port);
  if (error == asio::error::address_in_use) {
    return place + "another program listens there; choose another port with --port";
  }
  if (error == asio::error::access_denied) {
    return place + "permission denied; ports below 1024 are the system's: choose one with --port";
  }
  if (error.category() == asio::error::get_netdb_category() ||
      error.category() == asio::error::get_addrinfo_category()) {
    return place + "no address is known by this name; choose another with --host";
  }
  return place + error.message() + "; choose an address of this machine with --host";
}

// Sockets that listen on every address of a host's name.
class ListeningSockets {
 public:
  explicit ListeningSockets(asio::io_context& io) : io_(io) {}

  /// Returns the port. Error(kRuntime) where it cannot listen.
  int Open(const ListenerOptions& options) {
    std::string host = options.host;
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    error_code error;
    const auto found = tcp::resolver(io_).resolve(host, std::to_string(options.port),
                                                  tcp::resolver::passive, error);
    int port = options.port;
    for (const auto& entry : found) {
      tcp::endpoint endpoint = entry.endpoint();
      endpoint.port(static_cast<uint16_t>(port));
      error_code fault;
      const int bound = Listen(endpoint, found.size() > 1, fault);
      // A machine may have no IPv6 though its name has such an address.
      if (fault && (!error || fault == asio::error::address_in_use)) error = fault;
      if (!fault) port = bound;
    }
    if (acceptors_.empty() || error == asio::error::address_in_use) {
      throw Error(ErrorCode::kRuntime, ListenFault(options.host, options.port, error));
    }
    return port;
  }

  std::list<tcp::acceptor>& acceptors() { return acceptors_; }

 private:
  // Returns the port.
  int Listen(const tcp::endpoint& endpoint, bool is_one_of_several, error_code& error) {
    tcp::acceptor acceptor(io_);
    acceptor.open(endpoint.protocol(), error);
    // Never SO_REUSEPORT, by which two servers would share a port unnoticed.
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error && endpoint.address().is_v6()) {
      acceptor.set_option(asio::ip::v6_only(is_one_of_several), error);
    }
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(kBacklog, error);
    if (error) return 0;
    const int port = acceptor.local_endpoint().port();
    acceptors_.push_back(std::move(acceptor));
    return port;
  }

  asio::io_context& io_;
  std::list<tcp::acceptor> acceptors_;
};

// Boost's exceptions are not std::system_error, from which main explains the limit that was met.
template <typename F>
auto WithStandardErrors(F f) {
  try {
    return f();
  } catch (const boost::system::system_error& error) {
    throw std::system_error(error.code(), "cannot start the server");
  }
}

}  // namespace

class HttpListener::Impl {
 public:
  Impl(const ListenerOptions& options, HttpHandler& handler)
      : options_(options),
        context_{options_, handler, io_, workers_, BodyRoom(options.max_body_bytes), {}, [this] {
                   --num_open_;
                   room_for_more_.cancel();
                 }} {}

  int Start() {
    const int port = sockets_.Open(options_);
    for (tcp::acceptor& acceptor : sockets_.acceptors()) {
      asio::co_spawn(
          io_, [this, &acceptor] { return Accept(acceptor); }, asio::detached);
    }
    threads_.push_back(StartThread("the server's thread", [this] { Run(io_); }));
    for (size_t i = 0; i < kNumWorkers; ++i) {
      threads_.push_back(StartThread("a thread that reads requests", [this] { Run(workers_); }));
    }
    return port;
  }

  void Stop() {
    if (threads_.empty()) return;
    std::promise<void> closed;
    asio::post(io_, [&] {
      stopping_ = true;
      for (tcp::acceptor& acceptor : sockets_.acceptors()) acceptor.close();
      room_for_more_.cancel();
      for (HttpConnection* connection : context_.open) connection->Close();
      closed.set_value();
    });
    // From here on workers get nothing new, and connections wait for what they have begun.
    closed.get_future().wait();
    workers_work_.reset();
    while (threads_.size() > 1) {
      threads_.back().join();
      threads_.pop_back();
    }
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  size_t num_connections() const { return num_open_; }

  static void CheckAddress(const ListenerOptions& options) {
    asio::io_context io;
    ListeningSockets(io).Open(options);
  }

 private:
  static void Run(asio::io_context& context) {
    while (true) {
      // A handler may run out of memory; the others go on.
      try {
        context.run();
        return;
      } catch (const std::exception&) {
      }
    }
  }

  asio::awaitable<void> Accept(tcp::acceptor& acceptor) {
    while (!stopping_) {
      bool accepted = false;
      try {
        accepted = co_await AcceptOne(acceptor);
      } catch (const std::exception&) {
      }
      if (accepted || stopping_) continue;
      // All connections are taken, or no file or memory is left: clients wait in the kernel's
      // queue.
      CloseIdlest();
      co_await WaitForRoom();
    }
  }

  // False where a client waits that cannot be let in.
  asio::awaitable<bool> AcceptOne(tcp::acceptor& acceptor) {
    error_code error;
    co_await acceptor.async_wait(tcp::acceptor::wait_read,
                                 asio::redirect_error(asio::use_awaitable, error));
    if (error || stopping_ || num_open_ >= options_.max_connections) co_return false;
    tcp::socket socket =
        co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, error));
    if (error || stopping_) co_return false;
    Begin(std::move(socket));
    co_return true;
  }

  void Begin(tcp::socket socket) {
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
    const auto connection = std::make_shared<HttpConnection>(std::move(socket), context_);
    ++num_open_;
    connection->Start();
  }

  // A connection that ends ends the wait.
  asio::awaitable<void> WaitForRoom() {
    room_for_more_.expires_after(kRetryAccept);
    error_code error;
    co_await room_for_more_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }

  void CloseIdlest() {
    HttpConnection* idlest = nullptr;
    for (HttpConnection* connection : context_.open) {
      if (!connection->idle_since()) continue;
      if (idlest == nullptr || *connection->idle_since() < *idlest->idle_since()) {
        idlest = connection;
      }
    }
    if (idlest != nullptr) idlest->Close();
  }

  const ListenerOptions options_;
  asio::io_context io_{1};
  asio::io_context workers_;
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  asio::executor_work_guard<asio::io_context::executor_type> workers_work_ =
      asio::make_work_guard(workers_);
  asio::steady_timer room_for_more_{io_};
  std::atomic<size_t> num_open_ = 0;
  ConnectionContext context_;
  ListeningSockets sockets_{io_};
  bool stopping_ = false;             // on the I/O thread
  std::vector<std::thread> threads_;  // that of io_ first
};

HttpListener::HttpListener(const ListenerOptions& options, HttpHandler& handler)
    : impl_(WithStandardErrors([&] { return std::make_unique<Impl>(options, handler); })) {}
HttpListener::~HttpListener() {
  try {
    impl_->Stop();
  } catch (...) {
    std::terminate();  // no memory is left to stop the threads with
  }
}
int HttpListener::Start() {
  return WithStandardErrors([&] { return impl_->Start(); });
}
void HttpListener::CheckAddress(const ListenerOptions& options) {
  WithStandardErrors([&] { Impl::CheckAddress(options); });
}
void HttpListener::Stop() { impl_->Stop(); }
size_t HttpListener::num_connections() const { return impl_->num_connections(); }

uint64_t HttpListener::OwnBytes(size_t max_connections) {
  return (1 + kNumWorkers) * kThreadBytes + max_connections * kConnectionBytes;
}

}  // namespace thimble::server
