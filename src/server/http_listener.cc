#include "server/http_listener.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace thimble::server {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMaxHeadBytes = 64 << 10;
// How soon an idle connection notices that the server stops.
constexpr milliseconds kIdlePoll(100);
// Of what a client still sends after it was refused: otherwise it would be told of a reset
// connection instead of the reason.
constexpr size_t kMaxRestBytes = 1 << 20;
constexpr milliseconds kRestTime(1000);

thread_local socket_t served_socket = INVALID_SOCKET;

bool Ready(socket_t socket, short event, milliseconds timeout) {
  const auto end = Clock::now() + timeout;
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    pollfd wait = {socket, event, 0};
    const int count = ::poll(&wait, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (count >= 0 || errno != EINTR) return count > 0;
  }
}

ssize_t Receive(socket_t socket, char* bytes, size_t size) {
  while (true) {
    const ssize_t count = ::recv(socket, bytes, size, 0);
    if (count >= 0 || errno != EINTR) return count;
  }
}

class ConnectionStream : public httplib::Stream {
 public:
  struct Timeouts {
    milliseconds read;
    milliseconds write;
  };
  ConnectionStream(socket_t socket, Timeouts timeouts) : socket_(socket), timeouts_(timeouts) {}

  /// Waits for the first byte of a request, at most `timeout`.
  bool AwaitRequest(milliseconds timeout) const {
    return next_ < filled_ || Ready(socket_, POLLIN, timeout);
  }
  void BeginHead() {
    head_left_ = kMaxHeadBytes;
    head_end_ = Clock::now() + timeouts_.read;
    in_head_ = true;
  }
  void EndHead() { in_head_ = false; }

  bool is_readable() const override {
    if (next_ < filled_) return true;
    const auto left = std::chrono::ceil<milliseconds>(head_end_ - Clock::now());
    return Ready(socket_, POLLIN, in_head_ ? left : timeouts_.read);
  }
  bool is_writable() const override { return Ready(socket_, POLLOUT, timeouts_.write); }

  ssize_t read(char* bytes, size_t size) override {
    if (in_head_ && head_left_ < size) return -1;
    if (next_ == filled_) {
      if (!is_readable()) return -1;
      const ssize_t count = Receive(socket_, buffer_.data(), buffer_.size());
      if (count <= 0) return count;
      next_ = 0;
      filled_ = static_cast<size_t>(count);
    }
    const size_t count = std::min(size, filled_ - next_);
    std::memcpy(bytes, buffer_.data() + next_, count);
    next_ += count;
    if (in_head_) head_left_ -= count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* bytes, size_t size) override {
    if (!is_writable()) return -1;
    while (true) {
      const ssize_t count = ::send(socket_, bytes, size, MSG_NOSIGNAL);
      if (count >= 0 || errno != EINTR) return count;
    }
  }

  // Nobody asks where a client is.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  const socket_t socket_;
  const Timeouts timeouts_;
  std::array<char, 4096> buffer_;
  size_t next_ = 0;
  size_t filled_ = 0;
  bool in_head_ = false;
  size_t head_left_ = 0;
  Clock::time_point head_end_;
};

void SkipRest(socket_t socket) {
  std::array<char, 4096> bytes;
  const auto end = Clock::now() + kRestTime;
  for (size_t skipped = 0; skipped < kMaxRestBytes;) {
    const auto left = std::chrono::floor<milliseconds>(end - Clock::now());
    if (left.count() <= 0 || !Ready(socket, POLLIN, left)) return;
    const ssize_t count = Receive(socket, bytes.data(), bytes.size());
    if (count <= 0) return;
    skipped += static_cast<size_t>(count);
  }
}

}  // namespace

bool HttpListener::PeerGone() {
  char byte = 0;
  const ssize_t got = ::recv(served_socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

bool HttpListener::process_and_close_socket(socket_t socket) {
  served_socket = socket;
  ConnectionStream stream(
      socket, {std::chrono::seconds(read_timeout_sec_), std::chrono::seconds(write_timeout_sec_)});
  const auto next_comes = [&] {
    const auto end = Clock::now() + std::chrono::seconds(keep_alive_timeout_sec_);
    while (svr_sock_ != INVALID_SOCKET && Clock::now() < end) {
      if (stream.AwaitRequest(kIdlePoll)) return true;
    }
    return false;
  };
  bool is_request = true;
  bool goes_on = true;
  for (size_t left = keep_alive_max_count_; goes_on && left > 0 && next_comes(); --left) {
    is_request = false;
    bool closes = false;
    stream.BeginHead();
    // Calls back once the head has been understood.
    const bool answered = process_request(stream, left == 1, closes, [&](httplib::Request& req) {
      is_request = true;
      stream.EndHead();
      // A compressed stream is held back by its compressor.
      req.headers.erase("Accept-Encoding");
    });
    goes_on = answered && is_request && !closes;
  }
  ::shutdown(socket, SHUT_WR);
  if (!is_request) SkipRest(socket);
  ::close(socket);
  return true;
}

}  // namespace thimble::server
