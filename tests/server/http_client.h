#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace thimble::server {

/// A client of one request, by plain sockets: it sees bytes as they come, and can hang up at any
/// time.
class RawClient {
 public:
  enum Time { kNow, kLater };
  explicit RawClient(int port, Time connects = kNow) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (connects == kNow) Connect(port);
  }
  void Connect(int port) const {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      throw std::runtime_error("cannot connect");
    }
  }
  ~RawClient() { HangUp(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Post(const std::string& path, const std::string& body, const std::string& headers = {}) {
    Send("POST " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + headers +
         "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body);
  }
  void Get(const std::string& path, const std::string& headers = "Host: 127.0.0.1\r\n",
           const std::string& method = "GET") {
    Send(method + " " + path + " HTTP/1.1\r\nConnection: close\r\n" + headers + "\r\n");
  }
  void Send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t count = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;
      sent += static_cast<size_t>(count);
    }
  }

  /// Everything up to `mark`, or to the end. At most ten seconds.
  std::string ReadUntil(const std::string& mark) { return Read(mark, 10'000); }
  std::string ReadAll() { return ReadUntil(""); }
  /// What comes in so many milliseconds.
  std::string ReadFor(int milliseconds) { return Read("", milliseconds); }

  /// Nothing more will be sent; answers can still be read.
  void EndSending() const { ::shutdown(socket_, SHUT_WR); }

  void HangUp() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  std::string Read(const std::string& mark, int milliseconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    while (mark.empty() || received_.find(mark) == std::string::npos) {
      pollfd wait = {socket_, POLLIN, 0};
      if (std::chrono::steady_clock::now() > end) break;
      if (::poll(&wait, 1, std::min(milliseconds, 100)) <= 0) continue;
      char buffer[4096];
      const ssize_t count = ::recv(socket_, buffer, sizeof(buffer), 0);
      if (count <= 0) break;
      received_.append(buffer, static_cast<size_t>(count));
    }
    return received_;
  }

  int socket_;
  std::string received_;
};

}  // namespace thimble::server
