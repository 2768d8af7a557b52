#pragma once

#include <string_view>

namespace thimble::server {

/// The web page, page.html, as it is built in.
extern const std::string_view kPage;

}  // namespace thimble::server
