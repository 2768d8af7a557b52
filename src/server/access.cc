#include "server/access.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/error.h"

namespace thimble::server {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

struct Authority {
  std::string name;  // lower case, without brackets and final dot
  std::string port;  // empty: none given
};

// "Name.:80" -> {"name", "80"}, "[::1]:80" -> {"::1", "80"}.
Authority ParseAuthority(std::string_view text) {
  const bool bracketed = text.starts_with('[');
  const size_t end = bracketed ? text.find(']') : text.find(':');
  // "[::1].example" is no address.
  if (bracketed &&
      (end == std::string_view::npos || (end + 1 < text.size() && text[end + 1] != ':'))) {
    return {std::string(text), {}};
  }
  std::string name = Lower(text.substr(bracketed ? 1 : 0, bracketed ? end - 1 : end));
  const size_t colon = end == std::string_view::npos ? end : text.find(':', end);
  std::string port;
  if (colon != std::string_view::npos) port = text.substr(colon + 1);
  if (name.ends_with('.')) name.pop_back();
  return {std::move(name), std::move(port)};
}

bool IsAddress(const std::string& name) {
  std::array<unsigned char, sizeof(in6_addr)> address;
  // An address of one network card carries its name: fe80::1%eth0.
  const std::string plain = name.substr(0, name.find('%'));
  return ::inet_pton(AF_INET, name.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, plain.c_str(), address.data()) == 1;
}

bool IsLoopback(const std::string& name) {
  return name == "localhost" || name.ends_with(".localhost") || name == "::1" ||
         (IsAddress(name) && name.starts_with("127."));
}

struct Origin {
  Authority authority;
  std::string default_port;
};

// Absent: not of the web, e.g. "null" or "app://x".
bool ParseOrigin(std::string_view text, Origin* origin) {
  for (const auto& [scheme, port] :
       {std::pair<std::string_view, const char*>{"http://", "80"}, {"https://", "443"}}) {
    if (!text.starts_with(scheme)) continue;
    *origin = {ParseAuthority(text.substr(scheme.size())), port};
    return true;
  }
  return false;
}

bool IsSameOrigin(const Origin& origin, std::string_view host_header) {
  const Authority host = ParseAuthority(host_header);
  const auto port = [&](const Authority& authority) {
    return authority.port.empty() ? origin.default_port : authority.port;
  };
  return !host.name.empty() && host.name == origin.authority.name &&
         port(host) == port(origin.authority);
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

std::string ParseAllowedHost(const std::string& text) {
  if (text == "*") return text;
  std::string name = ParseAuthority(text.starts_with("*.") ? text.substr(1) : text).name;
  const bool valid = !name.empty() && name != "." && text.find('/') == std::string::npos &&
                     (IsAddress(name) || std::ranges::all_of(name, [](unsigned char c) {
                        return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_';
                      }));
  if (!valid) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--allow-host expects a host name such as llm.example.org, "
                            "*.example.org for all names below one, or * for any; found '{}'",
                            text));
  }
  return name;
}

std::string ParseAllowedOrigin(const std::string& text) {
  if (text == "*" || text == "null") return text;
  std::string origin = Lower(text);
  if (origin.ends_with('/')) origin.pop_back();
  const size_t scheme = origin.find("://");
  const bool valid = scheme != std::string::npos && scheme > 0 && scheme + 3 < origin.size() &&
                     origin.find_first_of("/ ,", scheme + 3) == std::string::npos;
  if (!valid) {
    throw Error(ErrorCode::kUsage, fmt::format("--cors expects the origin of a page such as "
                                               "https://ui.example.org, or * for any; found '{}'",
                                               text));
  }
  return origin;
}

std::vector<std::string> NamesOfThisMachine() {
  std::vector<std::string> names = {"host.docker.internal", "gateway.docker.internal",
                                    "host.containers.internal", "host.lima.internal"};
  std::array<char, 256> buffer = {};
  if (::gethostname(buffer.data(), buffer.size() - 1) != 0) return names;
  const std::string name = Lower(buffer.data());
  const std::string first = name.substr(0, name.find('.'));
  if (first.empty()) return names;
  names.push_back(name);
  names.push_back(first);
  names.push_back(first + ".local");
  return names;
}

AccessPolicy::AccessPolicy(Names names) : names_(std::move(names)) {}

bool AccessPolicy::AllowsName(const std::string& name) const {
  if (IsAddress(name) || IsLoopback(name) || name == Lower(names_.bound)) return true;
  if (std::ranges::find(names_.own, name) != names_.own.end()) return true;
  return std::ranges::any_of(names_.allowed, [&](const std::string& allowed) {
    return allowed == "*" || name == allowed ||
           (allowed.starts_with('.') && name.ends_with(allowed));
  });
}

bool AccessPolicy::AllowsHost(std::string_view host_header) const {
  return host_header.empty() || AllowsName(ParseAuthority(host_header).name);
}

bool AccessPolicy::AllowsOrigin(std::string_view origin, std::string_view host_header) const {
  if (!names_.origin.empty() && (names_.origin == "*" || origin == names_.origin)) return true;
  Origin page;
  if (!ParseOrigin(origin, &page)) return false;
  return IsLoopback(page.authority.name) ||
         (IsSameOrigin(page, host_header) && AllowsHost(host_header));
}

std::string SanitizedHeaderNames(std::string_view names) {
  constexpr size_t kMaxBytes = 2048;
  const bool valid = names.size() <= kMaxBytes && std::ranges::all_of(names, [](unsigned char c) {
                       return std::isalnum(c) != 0 || c == '-' || c == '_' || c == ',' || c == ' ';
                     });
  return valid ? std::string(names) : std::string();
}

}  // namespace thimble::server
