#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace thimble::server {

/// Whether two strings are equal, in a time that does not tell where they differ.
bool EqualInConstantTime(std::string_view a, std::string_view b);

/// What --allow-host takes: a host name, maybe with a port, which is ignored; ".example.com" or
/// "*.example.com" for all names below one; "*" for any. Returned in lower case without port.
/// Error(kUsage) for anything else.
std::string ParseAllowedHost(const std::string& text);

/// What --cors takes: '*', 'null' or an origin such as https://ui.example.org, of which a final
/// slash is dropped, since browsers send none. Error(kUsage) for anything else.
std::string ParseAllowedOrigin(const std::string& text);

/// The names by which others may call this machine: its host name with and without its domain, the
/// same under .local, and the names that container tools give to the host of a container. A page
/// of another site cannot make its browser use one of these for a server of its own.
std::vector<std::string> NamesOfThisMachine();

/// Which Hosts and Origins may use the server. Immutable; any thread may ask.
class AccessPolicy {
 public:
  struct Names {
    std::string bound;                 // --host
    std::vector<std::string> own;      // NamesOfThisMachine()
    std::vector<std::string> allowed;  // of ParseAllowedHost
    std::string origin;                // --cors: an origin, '*' or nothing
  };
  explicit AccessPolicy(Names names);

  /// Whether a Host header names this server: an address, a name of this machine, or one that was
  /// allowed. A page that made its own name resolve to this machine (DNS rebinding) would send that
  /// name. No header at all is allowed: only old clients send none, never a browser.
  bool AllowsHost(std::string_view host_header) const;

  /// Whether a page of `origin` may use this server: one that this server sent, which has the
  /// origin that `host_header` names; one of this machine; or the one of --cors.
  bool AllowsOrigin(std::string_view origin, std::string_view host_header) const;

 private:
  bool AllowsName(const std::string& name) const;

  const Names names_;
};

/// A list of header names as the client sent it; empty if it holds anything else.
std::string SanitizedHeaderNames(std::string_view names);

}  // namespace thimble::server
