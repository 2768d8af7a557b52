#pragma once

#include <cstddef>
#include <string_view>

#include "text/char_class.h"

namespace thimble {

/// Cuts text into the pieces that byte pair encoding may not cross, as Kimi's pattern does:
///
///   [\p{Han}]+
///   [^\r\n\p{L}\p{N}]?U*L+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
///   [^\r\n\p{L}\p{N}]?U+L*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
///   \p{N}{1,3}
///    ?[^\s\p{L}\p{N}]+[\r\n]*
///   \s*[\r\n]+
///   \s+(?!\S)
///   \s+
///
/// with U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]] and L the same with Ll for Lu and Lt.
///
/// The first alternative that matches at a position wins. Every position matches one, so the pieces
/// are the text. Written out by hand instead of as a regular expression: it needs no backtracking
/// stack and each character is looked at a constant number of times.
///
/// Borrows the text, which must be valid UTF-8. One thread at a time. Does not fail or allocate.
class PieceCutter {
 public:
  explicit PieceCutter(std::string_view text)
      : classes_(CharClassTable::Get()), at_(text.data()), end_(text.data() + text.size()) {}

  /// Sets *piece to the next piece, never empty; false at the end of the text.
  bool Next(std::string_view* piece);

 private:
  struct Char {
    CharClassSet classes;  // 0 at the end of the text
    uint32_t length;
  };

  Char Peek(const char* p) const;
  const char* SkipRun(const char* p, CharClassSet classes) const;

  // Each takes the start of a match and returns its end, or nullptr where it does not match.
  const char* MatchAny(const char* p) const;
  const char* MatchWord(const char* p, Char first) const;
  const char* MatchLowerCore(const char* p) const;
  const char* MatchUpperCore(const char* p) const;
  const char* MatchNumber(const char* p) const;
  const char* MatchOther(const char* p) const;
  const char* MatchSpace(const char* p) const;
  const char* SkipContraction(const char* p) const;

  const CharClassTable& classes_;
  const char* at_;
  const char* end_;
};

}  // namespace thimble
