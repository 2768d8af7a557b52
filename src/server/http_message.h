#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace thimble::server {

struct HttpHeader {
  std::string name;
  std::string value;
};

struct HttpRequest {
  std::string method;
  std::string target;  // as it was sent
  std::string path;    // PlainPath of it
  std::vector<HttpHeader> headers;
  std::string body;  // without Content-Encoding

  /// The value of a header, whatever the case of its name; empty where there is none.
  std::string_view Header(std::string_view name) const;
};

/// The path of a request's target, as the routes spell it: without scheme and host, query, doubled
/// and final slashes, percent-encoding, and any "/v1" that it begins with. Clients disagree on
/// whether "/v1" and a final slash belong to a base URL, so it may come twice or not at all.
std::string PlainPath(std::string_view target);

class LiveReply;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers;
  std::string body;
  std::unique_ptr<LiveReply> live;  // not null: there is more to come, in place of the body
};

/// A response that takes a while to make. Except for the waking, one thread uses it. Destroyed
/// before its end where the client hung up.
class LiveReply {
 public:
  virtual ~LiveReply() = default;
  /// Whether the head goes out at once and the body in parts.
  virtual bool streamed() const = 0;
  /// Has `wake` called, from any thread, whenever Take may give more; never after this object is
  /// destroyed.
  virtual void OnChange(std::function<void()> wake) = 0;
  /// The part of the body that has been made since the last call, maybe none. `idle`: the client
  /// has heard nothing for a while and is owed a sign of life.
  virtual std::string Take(bool idle) = 0;
  /// Whether the latest Take gave the last part.
  virtual bool ended() const = 0;
  /// Not streamed, and ended: the response.
  virtual HttpResponse Whole() = 0;
};

/// What a listener serves.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  /// Answers what needs no body, and refuses before a body is read. Called on the thread that
  /// serves all connections: quick.
  virtual std::optional<HttpResponse> AnswerHead(const HttpRequest& request) = 0;
  /// Answers a request with its body. Called on any thread, several at once.
  virtual HttpResponse Answer(const HttpRequest& request) = 0;
  /// A response for what the listener itself refuses.
  virtual HttpResponse Refuse(const HttpRequest& request, int status,
                              const std::string& message) = 0;
};

}  // namespace thimble::server
