#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "text/token_table.h"

namespace thimble {

/// Kimi's longest token has 256 bytes.
constexpr size_t kMaxTokenBytes = 1024;

/// Reads a rank file: one token a line, `base64(bytes) SP decimal-rank`, with ranks 0, 1, 2, ... in
/// this order. A token's rank is its id and its merge priority. Lines end in LF or CRLF, the last
/// one also without; empty lines are skipped.
///
/// `name` is the file's name for messages. Throws Error(kBadModel), naming file and line, for
/// anything malformed: base64, an empty token or one above kMaxTokenBytes, a rank out of order, a
/// token twice, and where one of the 256 single bytes is missing (without them some text would have
/// no encoding). Linear in the file's size.
TokenTable ParseRankFile(std::string_view contents, const std::string& name);

}  // namespace thimble
