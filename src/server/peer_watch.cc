#include "server/peer_watch.h"

#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace thimble::server {
namespace {

bool IsPeer(int socket, const std::string& address, int port) {
  sockaddr_storage peer = {};
  socklen_t length = sizeof(peer);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return false;
  std::array<char, NI_MAXHOST> host;
  std::array<char, NI_MAXSERV> service;
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&peer), length, host.data(), host.size(),
                    service.data(), service.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return false;
  }
  return address == host.data() && std::to_string(port) == service.data();
}

}  // namespace

PeerWatch::PeerWatch(const std::string& address, int port) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    if (IsPeer(descriptor, address, port)) socket_ = descriptor;
  }
}

bool PeerWatch::Gone() const {
  if (socket_ < 0) return false;
  char byte = 0;
  const ssize_t got = ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace thimble::server
