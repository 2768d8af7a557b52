#include "server/access.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace thimble::server {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

// "name:80" -> "name", "[::1]:80" -> "::1".
std::string HostName(std::string_view authority) {
  if (authority.starts_with('[')) return Lower(authority.substr(1, authority.find(']') - 1));
  return Lower(authority.substr(0, authority.find(':')));
}

bool IsAddress(const std::string& name) {
  std::array<unsigned char, sizeof(in6_addr)> address;
  return ::inet_pton(AF_INET, name.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), address.data()) == 1;
}

bool IsThisMachine(const std::string& name) {
  return name == "localhost" || name.ends_with(".localhost") || name == "::1" ||
         (IsAddress(name) && name.starts_with("127."));
}

}  // namespace

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(other);
  }
  return difference == 0;
}

bool IsOwnHost(std::string_view host_header, const std::string& bound_host) {
  // HTTP/1.0 needs none.
  if (host_header.empty()) return true;
  const std::string name = HostName(host_header);
  return IsAddress(name) || IsThisMachine(name) || name == Lower(bound_host);
}

bool IsAllowedOrigin(std::string_view origin, const std::string& allowed) {
  if (!allowed.empty() && (allowed == "*" || origin == allowed)) return true;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (origin.starts_with(scheme)) return IsThisMachine(HostName(origin.substr(scheme.size())));
  }
  return false;
}

std::string SanitizedHeaderNames(std::string_view names) {
  constexpr size_t kMaxBytes = 2048;
  const bool valid = names.size() <= kMaxBytes && std::ranges::all_of(names, [](unsigned char c) {
                       return std::isalnum(c) != 0 || c == '-' || c == '_' || c == ',' || c == ' ';
                     });
  return valid ? std::string(names) : std::string();
}

}  // namespace thimble::server
