#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thimble {

/// Code points from first to last, both included.
struct CharRange {
  uint32_t first = 0;
  uint32_t last = 0;
  bool operator==(const CharRange&) const = default;
};
inline constexpr uint32_t kLastCodePoint = 0x10FFFF;

/// Sorts ranges and joins those that touch.
std::vector<CharRange> NormaliseRanges(std::vector<CharRange> ranges);
/// Every code point that is in none of `ranges`.
std::vector<CharRange> InvertRanges(std::vector<CharRange> ranges);

/// A deterministic automaton over code points: the texts that a schema's keywords allow, before
/// they are spelled as JSON. State 0 is the start. An automaton without states takes nothing.
class CharAutomaton {
 public:
  static constexpr uint32_t kDead = UINT32_MAX;
  /// States that an automaton may have. Operations that would exceed it throw TooLarge.
  static constexpr size_t kMaxStates = 10'000;
  struct TooLarge {};

  /// `cuts` are where the classes of code points begin, ascending, the first one 0.
  CharAutomaton(std::vector<uint32_t> cuts, std::vector<uint32_t> next, std::vector<bool> accepts);

  /// Every text.
  static CharAutomaton Any();
  /// The given texts, which are valid UTF-8.
  static CharAutomaton Of(std::span<const std::string> texts);
  /// Texts of at least `min` code points.
  static CharAutomaton AtLeast(size_t min);

  /// Texts that this one and the other one takes, or this one alone. Steps are subtracted from
  /// *work; TooLarge where they do not suffice.
  CharAutomaton And(const CharAutomaton& other, size_t* work) const {
    return Combine(other, true, work);
  }
  CharAutomaton AndNot(const CharAutomaton& other, size_t* work) const {
    return Combine(other, false, work);
  }

  size_t num_states() const { return accepts_.size(); }
  bool empty() const { return accepts_.empty(); }
  bool accepts(uint32_t state) const { return accepts_[state]; }
  bool Takes(std::string_view text) const;

  /// A class of code points, and where it leads from `state`.
  struct Edge {
    CharRange range;
    uint32_t target;
  };
  /// The edges of a state that lead somewhere, ascending, neighbours with one target joined.
  std::vector<Edge> Edges(uint32_t state) const;

 private:
  CharAutomaton Combine(const CharAutomaton& other, bool both, size_t* work) const;
  // Drops states from which no text can be completed.
  void Trim();
  size_t ClassOf(uint32_t code_point) const;

  std::vector<uint32_t> cuts_;
  std::vector<uint32_t> next_;  // [state][class]
  std::vector<bool> accepts_;
};

/// The code points of a text in valid UTF-8.
std::vector<uint32_t> CodePoints(std::string_view text);

}  // namespace thimble
