#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "server/api.h"
#include "server/job.h"

namespace thimble::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;      // 0: any that is free
  std::string api_key;  // empty: none is asked for
  std::string origin;   // of web pages that may call, beside those of this machine; empty: none
  size_t max_body_bytes = size_t{64} << 20;
  size_t num_connections = 64;  // served at once
  double keep_alive_seconds = 5;
  double time_scale = 1;  // for tests: how much faster the keep-alives' clock runs
};

/// The HTTP API over a backend (docs/SERVER.md). Borrows model and backend.
class HttpServer {
 public:
  HttpServer(const HttpOptions& options, const ServedModel& model, Backend& backend);
  /// Stop.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Binds and serves on threads of its own. Error(kRuntime) where the port is taken. Returns it.
  int Start();
  /// Answers that are on their way are finished first, at most `seconds` long; no new ones begin.
  void Stop(double seconds);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thimble::server
