#include "server/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace thimble::server {
namespace {

struct Route {
  std::string_view method;
  std::string_view path;  // one that ends in '/' stands for all below it
  Endpoint endpoint;
};

constexpr std::array kRoutes = {
    Route{"GET", "/health", Endpoint::kHealth},
    Route{"GET", "/", Endpoint::kPage},
    Route{"GET", "/models", Endpoint::kModels},
    Route{"GET", "/models/", Endpoint::kModel},
    Route{"GET", "/metrics", Endpoint::kMetrics},
    Route{"POST", "/tokenize", Endpoint::kTokenize},
    Route{"POST", "/detokenize", Endpoint::kDetokenize},
    Route{"POST", "/messages/count_tokens", Endpoint::kCountTokens},
    Route{"POST", "/chat/completions", Endpoint::kGenerate},
    Route{"POST", "/completions", Endpoint::kGenerate},
    Route{"POST", "/messages", Endpoint::kGenerate},
    Route{"POST", "/responses", Endpoint::kGenerate},
};

const Route* RouteOf(std::string_view path) {
  const auto* const found = std::ranges::find_if(kRoutes, [&](const Route& route) {
    const bool is_folder = route.path.size() > 1 && route.path.ends_with('/');
    return is_folder ? path.starts_with(route.path) : path == route.path;
  });
  return found == kRoutes.end() ? nullptr : &*found;
}

}  // namespace

Endpoint FindEndpoint(const HttpRequest& request) {
  constexpr size_t kMaxQuoted = 200;
  const std::string target = request.target.substr(0, kMaxQuoted);
  const Route* route = RouteOf(request.path);
  if (route == nullptr) {
    throw ApiError(404, fmt::format("there is no {} {}; this server answers under /v1/models, "
                                    "/v1/chat/completions, /v1/completions, /v1/messages and "
                                    "/v1/responses",
                                    request.method, target));
  }
  const bool fits =
      request.method == route->method || (request.method == "HEAD" && route->method == "GET");
  if (!fits) {
    throw ApiError(405, fmt::format("{} takes {}, not {}", target, route->method, request.method));
  }
  return route->endpoint;
}

std::string AllowedMethods(std::string_view path) {
  const Route* route = RouteOf(path);
  if (route == nullptr) return {};
  return route->method == "GET" ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
}

Api ApiOf(std::string_view path) {
  if (path.starts_with("/messages")) return Api::kMessages;
  if (path.starts_with("/responses")) return Api::kResponses;
  if (path.starts_with("/completions")) return Api::kCompletions;
  return Api::kChat;
}

}  // namespace thimble::server
