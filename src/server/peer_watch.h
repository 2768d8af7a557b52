#pragma once

#include <string>

namespace thimble::server {

/// Whether a client is still there. The HTTP library does not hand out a connection's socket; it is
/// found by its peer's address, and belongs to the connection as long as its handler runs.
class PeerWatch {
 public:
  PeerWatch(const std::string& address, int port);
  /// The peer has closed or reset the connection. False where the socket was not found.
  bool Gone() const;

 private:
  int socket_ = -1;
};

}  // namespace thimble::server
