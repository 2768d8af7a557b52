#include "cli/token_ids.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

namespace thimble::cli {
namespace {

constexpr std::string_view kSeparators = ", \t\r\n[]";
constexpr size_t kQuotedBytes = 20;  // of what is wrong

}  // namespace

std::string ParseIds(const std::string& text, std::vector<TokenId>* ids) {
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    if (kSeparators.find(*at) != std::string_view::npos) {
      ++at;
      continue;
    }
    TokenId id = 0;
    const auto [rest, error] = std::from_chars(at, end, id);
    const bool ends = rest == end || kSeparators.find(*rest) != std::string_view::npos;
    if (error != std::errc() || !ends) {
      return {at, std::min(kQuotedBytes, static_cast<size_t>(end - at))};
    }
    ids->push_back(id);
    at = rest;
  }
  return {};
}

}  // namespace thimble::cli
