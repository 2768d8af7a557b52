#include "server/http_message.h"

#include <strings.h>

#include <algorithm>

namespace thimble::server {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// What is no percent-encoding stays as it is.
std::string DecodePercent(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = high >= 0 ? HexDigit(text[i + 2]) : -1;
    if (low >= 0) {
      plain += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  const auto found = std::ranges::find_if(headers, [&](const HttpHeader& header) {
    return header.name.size() == name.size() &&
           ::strncasecmp(header.name.data(), name.data(), name.size()) == 0;
  });
  return found == headers.end() ? std::string_view() : found->value;
}

std::string PlainPath(std::string_view target) {
  target = target.substr(0, target.find_first_of("?#"));
  // As a proxy is asked: http://host/path.
  if (const size_t scheme = target.find("://"); scheme < target.find('/')) {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  std::string path;
  for (const char c : DecodePercent(target)) {
    if (c != '/' || !path.ends_with('/')) path += c;
  }
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  while (path.starts_with("/v1/")) path.erase(0, 3);
  return path;
}

}  // namespace thimble::server
