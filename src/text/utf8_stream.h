#pragma once

#include <string>
#include <string_view>

namespace thimble {

/// Turns a stream of tokens' bytes into text that is valid UTF-8 at every moment.
///
/// A token may hold part of a character. Up to three bytes are held back while they can still
/// become one; bytes that cannot become U+FFFD at once, one for each maximal subpart, as Python's
/// decode("utf-8", "replace") does. However the bytes are cut into calls, the text is the same.
///
/// One thread at a time. Does not fail.
class Utf8Stream {
 public:
  /// Appends to *text what `bytes` completes.
  void Feed(std::string_view bytes, std::string* text);

  /// Appends what was held back, as one U+FFFD: call it at a reserved token and at the end. The
  /// stream then starts afresh.
  void Flush(std::string* text);

  /// Whether bytes are held back.
  bool pending() const { return !pending_.empty(); }

 private:
  std::string pending_;  // at most 3 bytes, a valid beginning of a character
};

}  // namespace thimble
