#pragma once

#include <string>
#include <string_view>

namespace thimble {

/// Decodes base64 of the standard alphabet, padded and canonical: the bits that padding leaves over
/// are zero. False for anything else; `bytes` is then unspecified.
bool DecodeBase64(std::string_view text, std::string* bytes);

}  // namespace thimble
