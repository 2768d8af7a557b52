#pragma once

#include <optional>
#include <string_view>

namespace thimble {

/// The regular expression, in ECMA-262 and for whole texts, of the texts that JSON Schema's
/// `format` names: date, time, date-time, duration, email, hostname, ipv4, ipv6, uuid, uri, ...
/// Absent for formats that are not known. Where a standard allows odd texts (comments in an
/// address), the expression is the narrower one: what it takes is always of the format. The days of
/// February are 28.
std::optional<std::string_view> FindFormat(std::string_view name);

}  // namespace thimble
