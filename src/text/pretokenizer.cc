#include "text/pretokenizer.h"

#include "text/utf8.h"

namespace thimble {

PieceCutter::Char PieceCutter::Peek(const char* p) const {
  if (p == end_) return {0, 0};
  const CodePoint c = DecodeValidUtf8(p);
  return {classes_[c.value], c.length};
}

const char* PieceCutter::SkipRun(const char* p, CharClassSet classes) const {
  for (Char c = Peek(p); c.classes & classes; c = Peek(p)) p += c.length;
  return p;
}

/// (?i:'s|'t|'re|'ve|'m|'ll|'d)?
const char* PieceCutter::SkipContraction(const char* p) const {
  if (end_ - p < 2 || *p != '\'') return p;
  const auto lower = [p](int i) { return static_cast<char>(p[i] | 0x20); };
  const char first = lower(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return p + 2;
  if (end_ - p < 3) return p;
  const char second = lower(2);
  if ((first == 'r' || first == 'v') && second == 'e') return p + 3;
  if (first == 'l' && second == 'l') return p + 3;
  // U+017F, the long s, folds to s.
  if (p[1] == '\xc5' && p[2] == '\xbf') return p + 3;
  return p;
}

/// U*L+: the greedy U* gives back characters until one that is also in L follows.
const char* PieceCutter::MatchLowerCore(const char* p) const {
  const char* last_lower_end = nullptr;
  Char c = Peek(p);
  for (; c.classes & kUpper; c = Peek(p)) {
    p += c.length;
    if (c.classes & kLower) last_lower_end = p;
  }
  return c.classes & kLower ? SkipRun(p, kLower) : last_lower_end;
}

/// U+L*
const char* PieceCutter::MatchUpperCore(const char* p) const {
  const char* upper_end = SkipRun(p, kUpper);
  return upper_end == p ? nullptr : SkipRun(upper_end, kLower);
}

/// Alternatives 2 and 3. `first` is the character at p.
const char* PieceCutter::MatchWord(const char* p, Char first) const {
  constexpr CharClassSet kCore = kUpper | kLower;
  const char* core = p + first.length;
  // The optional prefix is greedy, so each alternative is tried with it first.
  const bool with = !(first.classes & (kNewline | kLetter | kNumber)) && Peek(core).classes & kCore;
  const bool without = first.classes & kCore;
  const char* end = nullptr;
  if (with) end = MatchLowerCore(core);
  if (!end && without) end = MatchLowerCore(p);
  if (!end && with) end = MatchUpperCore(core);
  if (!end && without) end = MatchUpperCore(p);
  return end ? SkipContraction(end) : nullptr;
}

const char* PieceCutter::MatchNumber(const char* p) const {
  for (int digits = 0; digits < 3; ++digits) {
    const Char c = Peek(p);
    if (!(c.classes & kNumber)) break;
    p += c.length;
  }
  return p;
}

const char* PieceCutter::MatchOther(const char* p) const {
  if (*p == ' ') ++p;
  const char* other_end = SkipRun(p, kOther);
  return other_end == p ? nullptr : SkipRun(other_end, kNewline);
}

/// The last three alternatives.
const char* PieceCutter::MatchSpace(const char* p) const {
  const char* newline_end = nullptr;
  const char* last = p;
  const char* run_end = p;
  for (Char c = Peek(p); c.classes & kSpace; c = Peek(run_end)) {
    last = run_end;
    run_end += c.length;
    if (c.classes & kNewline) newline_end = run_end;
  }
  if (newline_end) return newline_end;
  // The last space before a word belongs to the word, unless it is the only one.
  return run_end == end_ || last == p ? run_end : last;
}

const char* PieceCutter::MatchAny(const char* p) const {
  const Char first = Peek(p);
  if (first.classes & kHan) return SkipRun(p, kHan);
  if (const char* end = MatchWord(p, first)) return end;
  if (first.classes & kNumber) return MatchNumber(p);
  if (const char* end = MatchOther(p)) return end;
  return MatchSpace(p);
}

bool PieceCutter::Next(std::string_view* piece) {
  if (at_ == end_) return false;
  const char* start = at_;
  at_ = MatchAny(start);
  *piece = std::string_view(start, static_cast<size_t>(at_ - start));
  return true;
}

}  // namespace thimble
