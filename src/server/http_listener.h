#pragma once

#include <httplib.h>

namespace thimble::server {

/// The HTTP library's server, with connections of its own that
/// - end after what was no request: the library would read what follows as requests;
/// - bound the head of a request, its line and headers, in bytes and in time;
/// - end at once when the server stops, instead of when they have been idle for long enough;
/// - compress nothing, since the library would hold a stream back for it;
/// - tell their socket, by which a client that hangs up is noticed.
class HttpListener : public httplib::Server {
 public:
  /// Whether the client whose request the calling thread answers has closed the connection.
  static bool PeerGone();

 private:
  bool process_and_close_socket(socket_t socket) override;
};

}  // namespace thimble::server
