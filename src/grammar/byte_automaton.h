#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "grammar/char_automaton.h"

namespace thimble {

/// How the texts of an automaton over code points are spelled in bytes.
enum class TextSpelling : uint8_t {
  kJson,  // a JSON string with its quotes, escaped only where that is needed
  kRaw,   // the UTF-8 itself
};

/// A deterministic automaton over bytes. State 0 is the start; every state leads to an accepting
/// one. Some states end a code point of a text, so that its length can be counted as it is read.
class ByteAutomaton {
 public:
  static constexpr uint32_t kDead = UINT32_MAX;
  static constexpr uint32_t kFar = UINT32_MAX;  // more code points than can be counted

  struct Edge {
    uint8_t first = 0;
    uint8_t last = 0;
    uint32_t target = 0;
    bool operator==(const Edge&) const = default;
    auto operator<=>(const Edge&) const =
        default;  // NOLINT(modernize-use-nullptr): of clang-tidy 14
  };
  struct State {
    std::vector<Edge> edges;  // ascending, apart
    bool accepts = false;
    bool ends_char = false;
    uint32_t distance = 0;  // the fewest further code points until the text can end
  };

  /// Completes the states: drops edges to states that lead nowhere, fills in distances. Whether the
  /// start is still alive is said by empty().
  explicit ByteAutomaton(std::vector<State> states);

  /// Every text. In JSON any escape is allowed, surrogates only in pairs.
  static ByteAutomaton AnyText(TextSpelling spelling);
  /// Bytes without end, such as a thought.
  static ByteAutomaton AnyBytes();
  static ByteAutomaton Of(const CharAutomaton& automaton, TextSpelling spelling);
  /// Exactly these bytes, whatever they are; lengths are not counted.
  static ByteAutomaton OneOf(std::span<const std::string> texts);

  bool empty() const { return states_.empty(); }
  size_t num_states() const { return states_.size(); }
  const State& state(uint32_t index) const { return states_[index]; }
  uint32_t Step(uint32_t state, uint8_t byte) const {
    for (const Edge& edge : states_[state].edges) {
      if (byte <= edge.last) return byte >= edge.first ? edge.target : kDead;
    }
    return kDead;
  }

 private:
  std::vector<State> states_;
};

}  // namespace thimble
