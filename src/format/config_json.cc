#include "format/config_json.h"

#include <fmt/format.h>

#include "base/error.h"
#include "format/json_events.h"

namespace thimble {
namespace {

[[noreturn]] void FailConfig(const std::string& source, std::string_view expected_found) {
  throw Error(ErrorCode::kBadModel,
              fmt::format("{}: expected {}; the file is damaged or was edited: download it again",
                          source, expected_found));
}

}  // namespace

JsonValue ParseConfigJson(std::string_view text, const std::string& source) {
  JsonValue root;
  try {
    root = ParseJson(text, {.max_depth = kMaxFileDepth, .distinct_keys = true});
  } catch (const Error& error) {
    FailConfig(source, fmt::format("JSON, found something else: {}", error.what()));
  }
  if (!root.is_object()) FailConfig(source, "a JSON object, found another value");
  return root;
}

}  // namespace thimble
