#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/api.h"
#include "server/job.h"

namespace thimble::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                         // 0: any that is free
  std::string api_key;                     // empty: none is asked for
  std::string origin;                      // --cors, see AccessPolicy; empty: none
  std::vector<std::string> allowed_hosts;  // --allow-host, see AccessPolicy
  size_t max_body_bytes = size_t{64} << 20;
  size_t num_connections = 256;  // at a time
  double keep_alive_seconds = 5;
  double time_scale = 1;  // for tests: how much faster the clock of keep-alives and time-outs runs
};

/// The HTTP API over a backend (docs/SERVER.md). Borrows model and backend.
class HttpServer {
 public:
  HttpServer(const HttpOptions& options, const ServedModel& model, Backend& backend);
  /// Stop(0).
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Binds and serves on threads of its own. Returns the port. Error(kRuntime) where it is taken.
  int Start();
  /// Error(kRuntime) where Start could not listen: to be known before a model is loaded.
  static void CheckAddress(const HttpOptions& options);
  /// Takes no new jobs, waits at most `seconds` for the answers on their way, and ends all
  /// connections.
  void Stop(double seconds);

  /// Memory that a server takes at most with `num_jobs` of `context` tokens each: set aside.
  static uint64_t OwnBytes(const HttpOptions& options, size_t num_jobs, size_t context);

  /// The largest max_body_bytes that takes a sixteenth of a budget; at least 256 kB.
  static size_t MaxBodyBytes(uint64_t budget_bytes);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// "http://127.0.0.1:8080", "http://[::1]:8080".
std::string UrlOf(const std::string& host, int port);

}  // namespace thimble::server
