#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace thimble::server {

/// Takes the codings of a Content-Encoding header off a body: gzip, deflate, zstd, identity, or
/// several of them. ApiError 415 for another coding, 400 where the body is damaged, 413 where it
/// would have more than `max_bytes`. Works in little more memory than the two bodies take.
std::string DecodeBody(std::string_view content_encoding, std::string body, size_t max_bytes);

}  // namespace thimble::server
