#include "grammar/pattern.h"

#include <utf8proc.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace thimble {
namespace {

constexpr size_t kMaxPattern = 20'000;    // code points
constexpr size_t kMaxFragments = 50'000;  // of the automaton with choices, repeats written out
constexpr size_t kMaxGroups = 100;        // in one another
constexpr size_t kNoEnd = std::numeric_limits<size_t>::max();

[[noreturn]] void Invalid(const std::string& what) {
  throw PatternError(fmt::format("not a regular expression: {}", what), true);
}
[[noreturn]] void Unsupported(const std::string& what) { throw PatternError(what, false); }

using Ranges = std::vector<CharRange>;

Ranges Digits() { return {{'0', '9'}}; }
Ranges WordChars() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
Ranges Spaces() {
  return {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}

std::map<std::string, Ranges, std::less<>> AllCategories() {
  std::map<std::string, Ranges, std::less<>> all;
  for (uint32_t point = 0; point <= kLastCodePoint; ++point) {
    Ranges& ranges = all[utf8proc_category_string(static_cast<utf8proc_int32_t>(point))];
    if (!ranges.empty() && ranges.back().last + 1 == point) {
      ranges.back().last = point;
    } else {
      ranges.push_back({point, point});
    }
  }
  return all;
}

// \p{L}, \p{Lu}, ...: the code points whose general category begins with `name`.
Ranges Category(const std::string& name) {
  static const std::set<std::string> known = {
      "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P", "Pc",
      "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};
  static const std::map<std::string, std::string> longer = {{"Letter", "L"},
                                                            {"Alphabetic", "L"},
                                                            {"Lowercase_Letter", "Ll"},
                                                            {"Uppercase_Letter", "Lu"},
                                                            {"Number", "N"},
                                                            {"Decimal_Number", "Nd"},
                                                            {"Punctuation", "P"},
                                                            {"Symbol", "S"},
                                                            {"Mark", "M"}};
  const auto found = longer.find(name);
  const std::string category = found == longer.end() ? name : found->second;
  if (!known.contains(category)) Unsupported(fmt::format("\\p{{{}}} is not supported", name));
  static const std::map<std::string, Ranges, std::less<>> all = AllCategories();
  Ranges ranges;
  for (auto place = all.lower_bound(category);
       place != all.end() && place->first.starts_with(category); ++place) {
    ranges.insert(ranges.end(), place->second.begin(), place->second.end());
  }
  return NormaliseRanges(std::move(ranges));
}

// A tree of the expression.
struct Part {
  enum class Kind : uint8_t { kChars, kSequence, kChoice, kRepeat, kBegin, kEnd, kAhead };
  Kind kind = Kind::kSequence;
  Ranges chars;
  std::vector<Part> parts;
  size_t min = 0;
  size_t max = kNoEnd;
  bool negated = false;  // of kAhead
};

class Parser {
 public:
  explicit Parser(std::string_view pattern) : text_(CodePoints(pattern)) {
    if (text_.size() > kMaxPattern) Unsupported("it is too long");
  }

  Part Parse() {
    Part part = Choice(0);
    if (!AtEnd()) Invalid("a ')' without '('");
    return part;
  }

 private:
  bool AtEnd() const { return at_ == text_.size(); }
  uint32_t Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : UINT32_MAX;
  }
  uint32_t Take() {
    if (AtEnd()) Invalid("it ends too early");
    return text_[at_++];
  }
  bool TakeIf(std::string_view expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      if (Peek(i) != static_cast<unsigned char>(expected[i])) return false;
    }
    at_ += expected.size();
    return true;
  }

  Part Choice(size_t depth) {
    if (depth > kMaxGroups) Unsupported("its groups are nested too deeply");
    Part choice = {Part::Kind::kChoice, {}, {}};
    choice.parts.push_back(Sequence(depth));
    while (TakeIf("|")) choice.parts.push_back(Sequence(depth));
    return choice.parts.size() == 1 ? std::move(choice.parts.front()) : choice;
  }

  Part Sequence(size_t depth) {
    Part sequence;
    while (!AtEnd() && Peek() != '|' && Peek() != ')') sequence.parts.push_back(Term(depth));
    return sequence;
  }

  Part Term(size_t depth) {
    Part atom = Atom(depth);
    while (true) {
      size_t min = 0;
      size_t max = kNoEnd;
      if (TakeIf("*")) {
      } else if (TakeIf("+")) {
        min = 1;
      } else if (TakeIf("?")) {
        max = 1;
      } else if (Peek() != '{' || !Braces(&min, &max)) {
        return atom;
      }
      if (!TakeIf("?")) TakeIf("+");  // lazy or possessive: the same texts, but for backtracking
      const bool repeats = atom.kind != Part::Kind::kBegin && atom.kind != Part::Kind::kEnd &&
                           atom.kind != Part::Kind::kAhead;
      if (!repeats) Invalid("an assertion cannot be repeated");
      Part repeat = {Part::Kind::kRepeat, {}, {}, min, max};
      repeat.parts.push_back(std::move(atom));
      atom = std::move(repeat);
    }
  }

  // {2}, {2,}, {2,5} or {,5}. Otherwise the brace stands for itself.
  bool Braces(size_t* min, size_t* max) {
    const size_t start = at_++;
    const auto number = [&](size_t* value) {
      const size_t first = at_;
      *value = 0;
      while (Peek() >= '0' && Peek() <= '9')
        *value = std::min<size_t>(*value * 10 + Take() - '0', kMaxFragments);
      return at_ > first;
    };
    const bool has_min = number(min);
    bool has_max = has_min;
    *max = *min;
    if (TakeIf(",")) {
      has_max = number(max);
      if (!has_max) *max = kNoEnd;
    }
    if ((has_min || has_max) && TakeIf("}")) {
      if (*min > *max) Invalid("a repeat's numbers are out of order");
      return true;
    }
    at_ = start;
    return false;
  }

  Part Atom(size_t depth) {
    const uint32_t c = Take();
    switch (c) {
      case '^':
        return {Part::Kind::kBegin, {}, {}};
      case '$':
        return {Part::Kind::kEnd, {}, {}};
      case '(':
        return Group(depth);
      case '[':
        return {Part::Kind::kChars, Class(), {}};
      case '.':
        return {
            Part::Kind::kChars, InvertRanges({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}), {}};
      case '\\':
        return Escape();
      case '*':
      case '+':
      case '?':
        Invalid("there is nothing to repeat");
      default:
        return {Part::Kind::kChars, {{c, c}}, {}};
    }
  }

  Part Group(size_t depth) {
    Part::Kind kind = Part::Kind::kSequence;
    bool negated = false;
    if (TakeIf("?:")) {
    } else if (TakeIf("?=")) {
      kind = Part::Kind::kAhead;
    } else if (TakeIf("?!")) {
      kind = Part::Kind::kAhead;
      negated = true;
    } else if (TakeIf("?<=") || TakeIf("?<!")) {
      Unsupported("lookbehind is not supported");
    } else if (TakeIf("?P<") || TakeIf("?<")) {
      while (Take() != '>') {
      }
    } else if (Peek() == '?') {
      Unsupported("flags in an expression are not supported");
    }
    Part inner = Choice(depth + 1);
    if (!TakeIf(")")) Invalid("a ')' is missing");
    if (kind == Part::Kind::kSequence) return inner;
    Part ahead = {kind, {}, {}, 0, kNoEnd, negated};
    ahead.parts.push_back(std::move(inner));
    return ahead;
  }

  Part Escape() {
    const uint32_t c = Peek();
    if (c == 'b' || c == 'B') Unsupported("\\b is not supported");
    if ((c >= '1' && c <= '9') || c == 'k') Unsupported("back references are not supported");
    // Python's spellings of the anchors.
    if (TakeIf("A")) return {Part::Kind::kBegin, {}, {}};
    if (TakeIf("Z") || TakeIf("z")) return {Part::Kind::kEnd, {}, {}};
    return {Part::Kind::kChars, EscapedChars(), {}};
  }

  // What follows a backslash, inside or outside of brackets.
  Ranges EscapedChars() {
    const uint32_t c = Take();
    switch (c) {
      case 'd':
        return Digits();
      case 'D':
        return InvertRanges(Digits());
      case 'w':
        return WordChars();
      case 'W':
        return InvertRanges(WordChars());
      case 's':
        return Spaces();
      case 'S':
        return InvertRanges(Spaces());
      case 'p':
      case 'P': {
        const Ranges ranges = Property();
        return c == 'p' ? ranges : InvertRanges(ranges);
      }
      default: {
        const uint32_t point = EscapedChar(c);
        return {{point, point}};
      }
    }
  }

  Ranges Property() {
    if (!TakeIf("{")) Invalid("\\p without braces");
    std::string name;
    for (uint32_t c = Take(); c != '}'; c = Take()) {
      if (c < 0x80) name += static_cast<char>(c);
      if (c == '=') name.clear();  // \p{General_Category=Lu}
    }
    return Category(name);
  }

  uint32_t EscapedChar(uint32_t c) {
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case '0':
        return 0;
      case 'x':
        return Hex(2);
      case 'c':
        return Take() % 32;
      case 'u': {
        if (Peek() == '{') {
          Take();
          uint32_t point = 0;
          for (uint32_t digit = Take(); digit != '}'; digit = Take()) {
            point = std::min(point * 16 + HexDigit(digit), kLastCodePoint);
          }
          return point;
        }
        const uint32_t unit = Hex(4);
        if (unit < 0xD800 || unit > 0xDBFF || !TakeIf("\\u")) return unit;
        return 0x10000 + ((unit - 0xD800) << 10) + ((Hex(4) - 0xDC00) & 0x3FF);
      }
      default: {
        const bool is_name = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (is_name) Unsupported(fmt::format("\\{} is not supported", static_cast<char>(c)));
        return c;
      }
    }
  }
  static uint32_t HexDigit(uint32_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    Invalid("a hexadecimal digit is missing");
  }
  uint32_t Hex(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i) value = value * 16 + HexDigit(Take());
    return value;
  }

  Ranges Class() {
    const bool negated = TakeIf("^");
    Ranges ranges;
    // A ']' that comes first stands for itself in Python and PCRE; in ECMA-262 the class is empty.
    while (Peek() != ']') {
      const Ranges first = ClassAtom();
      const bool is_range = first.size() == 1 && first[0].first == first[0].last && Peek() == '-' &&
                            Peek(1) != ']' && Peek(1) != UINT32_MAX;
      if (!is_range) {
        ranges.insert(ranges.end(), first.begin(), first.end());
        continue;
      }
      Take();
      const Ranges last = ClassAtom();
      if (last.size() != 1 || last[0].first != last[0].last || last[0].first < first[0].first) {
        Invalid("a range of characters is out of order");
      }
      ranges.push_back({first[0].first, last[0].first});
    }
    Take();
    ranges = NormaliseRanges(std::move(ranges));
    return negated ? InvertRanges(std::move(ranges)) : ranges;
  }
  Ranges ClassAtom() {
    const uint32_t c = Take();
    if (c != '\\') return {{c, c}};
    if (TakeIf("b")) return {{'\b', '\b'}};
    return EscapedChars();
  }

  std::vector<uint32_t> text_;
  size_t at_ = 0;
};

// Thompson's construction: each fragment has one way in and one way out.
class Fragments {
 public:
  enum class Pass : uint8_t { kFree, kBegin, kEnd };  // when an empty edge may be taken
  struct State {
    size_t chars = kNoEnd;  // index of the ranges that lead to `target`
    uint32_t target = 0;
    std::vector<std::pair<uint32_t, Pass>> empties;
  };

  uint32_t Add() {
    if (states.size() == kMaxFragments) Unsupported("it is too large");
    states.emplace_back();
    return static_cast<uint32_t>(states.size() - 1);
  }
  void Link(uint32_t from, uint32_t to, Pass pass = Pass::kFree) {
    states[from].empties.emplace_back(to, pass);
  }
  void LinkChars(uint32_t from, uint32_t to, const Ranges& ranges) {
    const auto found = std::ranges::find(sets, ranges);
    states[from].chars = static_cast<size_t>(found - sets.begin());
    states[from].target = to;
    if (found == sets.end()) sets.push_back(ranges);
  }

  // Lays `part` between `from` and the state that it returns.
  uint32_t Lay(const Part& part, uint32_t from) {
    const uint32_t to = Add();
    switch (part.kind) {
      case Part::Kind::kChars:
        LinkChars(from, to, part.chars);
        break;
      case Part::Kind::kBegin:
        Link(from, to, Pass::kBegin);
        break;
      case Part::Kind::kEnd:
        Link(from, to, Pass::kEnd);
        break;
      case Part::Kind::kSequence: {
        uint32_t at = from;
        for (const Part& inner : part.parts) at = Lay(inner, at);
        Link(at, to);
        break;
      }
      case Part::Kind::kChoice:
        for (const Part& inner : part.parts) {
          const uint32_t start = Add();
          Link(from, start);
          Link(Lay(inner, start), to);
        }
        break;
      case Part::Kind::kRepeat:
        LayRepeat(part, from, to);
        break;
      case Part::Kind::kAhead:
        Unsupported("a lookahead is supported at the beginning only");
    }
    return to;
  }

  std::vector<State> states;
  std::vector<Ranges> sets;

 private:
  void LayRepeat(const Part& part, uint32_t from, uint32_t to) {
    uint32_t at = from;
    for (size_t i = 0; i < part.min; ++i) at = Lay(part.parts[0], at);
    if (part.max == kNoEnd) {
      const uint32_t loop = Add();
      Link(at, loop);
      Link(Lay(part.parts[0], loop), loop);
      Link(loop, to);
      return;
    }
    Link(at, to);
    for (size_t i = part.min; i < part.max; ++i) {
      const uint32_t start = Add();
      Link(at, start);
      at = Lay(part.parts[0], start);
      Link(at, to);
    }
  }
};

// Makes fragments deterministic.
class Determiniser {
 public:
  // NOLINTNEXTLINE(readability-non-const-parameter): work_ counts it down
  Determiniser(const Fragments& fragments, uint32_t start, uint32_t end, size_t* work)
      : fragments_(fragments), end_(end), work_(*work) {
    for (const Ranges& set : fragments.sets) {
      for (const CharRange& range : set) {
        cuts_.push_back(range.first);
        if (range.last < kLastCodePoint) cuts_.push_back(range.last + 1);
      }
    }
    std::ranges::sort(cuts_);
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
    for (const Ranges& set : fragments.sets) classes_.push_back(ClassesOf(set));
    Number(Close({start}, true));
  }

  CharAutomaton Run() {
    std::vector<uint32_t> next;
    // NOLINTNEXTLINE(modernize-loop-convert): it grows meanwhile
    for (size_t i = 0; i < sets_.size(); ++i) {
      std::vector<std::vector<uint32_t>> targets(cuts_.size());
      for (const uint32_t member : *sets_[i]) {
        const auto& state = fragments_.states[member];
        if (state.chars == kNoEnd) continue;
        for (const size_t c : classes_[state.chars]) targets[c].push_back(state.target);
        Count(classes_[state.chars].size());
      }
      // Neighbouring classes often lead to the same set.
      for (size_t c = 0; c < cuts_.size(); ++c) {
        if (c > 0 && targets[c] == targets[c - 1]) {
          next.push_back(next.back());
        } else {
          next.push_back(targets[c].empty() ? CharAutomaton::kDead
                                            : Number(Close(targets[c], false)));
        }
      }
    }
    return {cuts_, std::move(next), accepts_};
  }

 private:
  struct Closure {
    std::vector<uint32_t> states;  // that take characters, ascending
    bool accepts = false;
  };

  std::vector<size_t> ClassesOf(const Ranges& set) const {
    std::vector<size_t> classes;
    for (const CharRange& range : set) {
      for (auto cut = std::ranges::lower_bound(cuts_, range.first);
           cut != cuts_.end() && *cut <= range.last; ++cut) {
        classes.push_back(static_cast<size_t>(cut - cuts_.begin()));
      }
    }
    return classes;
  }

  // All that can be reached without a character. What was reached through a '$' may only accept.
  Closure Close(const std::vector<uint32_t>& from, bool at_begin) {
    Closure closure;
    std::set<std::pair<uint32_t, bool>> seen;
    std::vector<std::pair<uint32_t, bool>> pending;
    pending.reserve(from.size());
    for (const uint32_t state : from) pending.emplace_back(state, false);
    while (!pending.empty()) {
      const auto [state, ended] = pending.back();
      pending.pop_back();
      if (!seen.insert({state, ended}).second) continue;
      Count(1);
      if (state == end_) closure.accepts = true;
      if (!ended && fragments_.states[state].chars != kNoEnd) closure.states.push_back(state);
      for (const auto& [target, pass] : fragments_.states[state].empties) {
        if (pass == Fragments::Pass::kBegin && !at_begin) continue;
        pending.emplace_back(target, ended || pass == Fragments::Pass::kEnd);
      }
    }
    std::ranges::sort(closure.states);
    closure.states.erase(std::unique(closure.states.begin(), closure.states.end()),
                         closure.states.end());
    return closure;
  }

  uint32_t Number(Closure closure) {
    const auto [place, is_new] = known_.try_emplace({std::move(closure.states), closure.accepts},
                                                    static_cast<uint32_t>(sets_.size()));
    if (!is_new) return place->second;
    if (sets_.size() == CharAutomaton::kMaxStates) throw CharAutomaton::TooLarge();
    sets_.push_back(&place->first.first);
    accepts_.push_back(closure.accepts);
    return place->second;
  }

  void Count(size_t steps) {
    if (steps > work_) throw CharAutomaton::TooLarge();
    work_ -= steps;
  }

  const Fragments& fragments_;
  const uint32_t end_;
  size_t& work_;
  std::vector<uint32_t> cuts_ = {0};
  std::vector<std::vector<size_t>> classes_;  // of each set of characters
  std::map<std::pair<std::vector<uint32_t>, bool>, uint32_t> known_;
  std::vector<const std::vector<uint32_t>*> sets_;
  std::vector<bool> accepts_;
};

CharAutomaton Compile(const Part& part, bool whole, size_t* work) {
  const Ranges any = {{0, kLastCodePoint}};
  Fragments fragments;
  const uint32_t start = fragments.Add();
  if (!whole) fragments.LinkChars(start, start, any);
  const uint32_t inner = fragments.Add();
  fragments.Link(start, inner);
  const uint32_t end = fragments.Lay(part, inner);
  if (!whole) fragments.LinkChars(end, end, any);
  return Determiniser(fragments, start, end, work).Run();
}

// Takes the lookaheads off the front of an expression that begins with '^'.
std::vector<Part> TakeLookaheads(Part* pattern) {
  std::vector<Part> taken;
  if (pattern->kind != Part::Kind::kSequence) return taken;
  auto& parts = pattern->parts;
  if (parts.empty() || parts[0].kind != Part::Kind::kBegin) return taken;
  while (parts.size() > 1 && parts[1].kind == Part::Kind::kAhead) {
    taken.push_back(std::move(parts[1]));
    parts.erase(parts.begin() + 1);
  }
  return taken;
}

}  // namespace

CharAutomaton CompilePattern(std::string_view pattern, bool whole, size_t* work) {
  try {
    Part part = Parser(pattern).Parse();
    const std::vector<Part> lookaheads = TakeLookaheads(&part);
    CharAutomaton automaton = Compile(part, whole, work);
    for (const Part& ahead : lookaheads) {
      Part anchored;
      anchored.parts.push_back({Part::Kind::kBegin, {}, {}});
      anchored.parts.push_back(ahead.parts[0]);
      const CharAutomaton condition = Compile(anchored, false, work);
      automaton =
          ahead.negated ? automaton.AndNot(condition, work) : automaton.And(condition, work);
    }
    return automaton;
  } catch (const CharAutomaton::TooLarge&) {
    Unsupported("it needs too many states");
  }
}

}  // namespace thimble
