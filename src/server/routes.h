#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/api.h"
#include "server/http_message.h"

namespace thimble::server {

enum class Endpoint : uint8_t {
  kHealth,
  kPage,
  kModels,
  kModel,
  kMetrics,
  kTokenize,
  kDetokenize,
  kCountTokens,
  kGenerate
};

/// Where a request goes by its method and path; HEAD goes where GET goes. ApiError 404 where there
/// is no such path, 405 where it takes another method (AllowedMethods).
Endpoint FindEndpoint(const HttpRequest& request);

/// The methods that a path takes, as the header Allow has them; empty: there is no such path.
std::string AllowedMethods(std::string_view path);

/// The API in whose shape an error on this path is told.
Api ApiOf(std::string_view path);

}  // namespace thimble::server
