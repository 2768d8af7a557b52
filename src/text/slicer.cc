#include "text/slicer.h"

#include <algorithm>
#include <utility>

#include "text/char_class.h"
#include "text/utf8.h"

namespace thimble {
namespace {

bool IsPythonSpace(const CharClassTable& classes, uint32_t code_point) {
  return classes[code_point] & kSpace || (code_point >= 0x1c && code_point <= 0x1f);
}

}  // namespace

bool Slicer::Next(std::string_view* slice) {
  if (rest_.empty()) return false;
  // Fewer bytes than either limit has characters: nothing to cut.
  if (rest_.size() <= std::min(limits_.max_run, limits_.max_slice - chars_in_slice_)) {
    *slice = std::exchange(rest_, {});
    return true;
  }
  const CharClassTable& classes = CharClassTable::Get();
  size_t at = 0;
  size_t run = 0;
  bool run_is_space = false;
  while (at < rest_.size()) {
    if (chars_in_slice_ == limits_.max_slice) {
      chars_in_slice_ = 0;
      break;
    }
    const CodePoint c = DecodeValidUtf8(rest_.data() + at);
    const bool is_space = IsPythonSpace(classes, c.value);
    run = is_space == run_is_space ? run + 1 : 1;
    run_is_space = is_space;
    // A run goes on behind the cut it caused: the character that overflows starts the count at 1
    // in either case, so each call may begin afresh.
    if (run > limits_.max_run) break;
    at += c.length;
    ++chars_in_slice_;
  }
  *slice = rest_.substr(0, at);
  rest_.remove_prefix(at);
  return true;
}

}  // namespace thimble
