#pragma once

#include <string>
#include <string_view>

namespace thimble::server {

/// Who may call. Pure functions.

/// Whether two strings are equal, in a time that does not tell where they differ.
bool EqualInConstantTime(std::string_view a, std::string_view b);

/// Whether a Host header names this server: an address, this machine, or the name it was bound to.
/// A web page that had its own name resolve here (DNS rebinding) would send that name.
bool IsOwnHost(std::string_view host_header, const std::string& bound_host);

/// Whether a page of `origin` may read answers: one of this machine, or the one that was allowed.
bool IsAllowedOrigin(std::string_view origin, const std::string& allowed);

/// A list of header names as the client sent it, without anything that is not one.
std::string SanitizedHeaderNames(std::string_view names);

}  // namespace thimble::server
