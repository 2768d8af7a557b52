#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace thimble::server {

using Json = nlohmann::ordered_json;

/// JSON on one line; never fails.
inline std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// A server-sent event, with and without a name, and a comment, which clients pass over.
inline std::string Event(const Json& json) { return "data: " + Dump(json) + "\n\n"; }
inline std::string Event(const std::string& name, const Json& json) {
  return "event: " + name + "\n" + Event(json);
}
inline std::string Comment(const std::string& text) { return ": " + text + "\n\n"; }

}  // namespace thimble::server
