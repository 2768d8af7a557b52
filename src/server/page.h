#pragma once

#include <string_view>

namespace thimble::server {

/// The web page, page.html, as it is built in.
std::string_view Page();

}  // namespace thimble::server
