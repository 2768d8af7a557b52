#pragma once

#include <cstddef>
#include <string_view>

namespace thimble {

/// How long a text the official tokenizer hands to its regular expression at once, in code points.
struct SliceLimits {
  size_t max_slice = 400'000;  // a hard cut, even inside a word
  size_t max_run = 25'000;     // of characters that are all white space, or all not
};

/// Cuts text where the official encode() cuts it. The cuts change ids, so they are part of the
/// tokenizer's definition: first every max_slice code points; then, within each such
/// slice, before the character that would make a run longer than max_run. White space here is
/// Python's str.isspace: White_Space and U+001C to U+001F.
///
/// Borrows the text, which must be valid UTF-8. One thread at a time. Does not fail or allocate.
class Slicer {
 public:
  /// Both limits are at least 1.
  explicit Slicer(std::string_view text, SliceLimits limits = {}) : rest_(text), limits_(limits) {}

  /// Sets *slice to the next one, never empty; false at the end of the text.
  bool Next(std::string_view* slice);

 private:
  std::string_view rest_;
  SliceLimits limits_;
  size_t chars_in_slice_ = 0;  // code points since the last hard cut
};

}  // namespace thimble
