#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "server/http_message.h"

namespace thimble::server {

struct ListenerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0: any that is free
  size_t max_connections = 256;
  size_t max_body_bytes = size_t{64} << 20;  // of one body, and of all that are read at a time
  double keep_alive_seconds = 5;             // until a stream's client gets a sign of life
  double time_scale = 1;                     // how much faster the clock of time-outs runs
};

/// Listens, and carries HTTP/1.1 between clients and a handler. One thread serves all connections,
/// which cost no thread each, and two more call HttpHandler::Answer.
///
/// A connection ends when it has been idle for 75 s, when a head, a pause in a body or the writing
/// of 64 kB takes more than 30 s, after what was no HTTP, and when its client closes it, which is
/// noticed at once. Where all connections are taken, or the process has no file left, the one that
/// has been idle for the longest makes room; without an idle one new clients wait.
class HttpListener {
 public:
  /// Borrows the handler.
  HttpListener(const ListenerOptions& options, HttpHandler& handler);
  /// Stop.
  ~HttpListener();
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

  /// Binds and serves. Returns the port. Error(kRuntime) where that is not possible.
  int Start();
  /// Whether it could bind: Error(kRuntime) as of Start. Nothing goes on listening.
  static void CheckAddress(const ListenerOptions& options);
  /// Ends all connections at once. Any thread but the handler's.
  void Stop();

  size_t num_connections() const;

  /// Memory that a listener and its connections take at most, beside the bodies of requests.
  static uint64_t OwnBytes(size_t max_connections);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thimble::server
