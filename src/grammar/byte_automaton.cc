#include "grammar/byte_automaton.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string_view>
#include <utility>

namespace thimble {
namespace {

using Edge = ByteAutomaton::Edge;
using State = ByteAutomaton::State;

// The letters of JSON's short escapes, and what they stand for.
constexpr std::pair<char, char> kEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'b', '\b'}, {'f', '\f'},
                                              {'n', '\n'}, {'r', '\r'},  {'t', '\t'}};

// Spells the code points of one automaton.
class Speller {
 public:
  Speller(const CharAutomaton& automaton, TextSpelling spelling)
      : automaton_(automaton), is_json_(spelling == TextSpelling::kJson) {}

  std::vector<State> Spell() {
    // The states of the automaton come first, after the one before the opening quote.
    const uint32_t base = is_json_ ? 1 : 0;
    states_.resize(base + automaton_.num_states());
    if (is_json_) {
      states_[0].edges.push_back({'"', '"', base});
      states_.push_back({{}, true, false, 0});
    }
    const auto closed = static_cast<uint32_t>(states_.size() - 1);
    for (uint32_t i = 0; i < automaton_.num_states(); ++i) {
      edges_ = automaton_.Edges(i);
      for (auto& edge : edges_) edge.target += base;
      std::map<uint8_t, uint32_t> targets = Leads();
      if (is_json_ && automaton_.accepts(i)) targets['"'] = closed;
      State& state = states_[base + i];
      state.edges = Join(targets);
      state.ends_char = true;
      state.accepts = !is_json_ && automaton_.accepts(i);
    }
    return std::move(states_);
  }

 private:
  uint32_t Target(uint32_t code_point) const {
    for (const auto& edge : edges_) {
      if (code_point <= edge.range.last) {
        return code_point >= edge.range.first ? edge.target : ByteAutomaton::kDead;
      }
    }
    return ByteAutomaton::kDead;
  }

  // Where each first byte of a character leads.
  std::map<uint8_t, uint32_t> Leads() {
    std::map<uint8_t, uint32_t> targets;
    const auto put = [&](uint32_t byte, uint32_t target) {
      if (target != ByteAutomaton::kDead) targets[static_cast<uint8_t>(byte)] = target;
    };
    for (uint32_t c = is_json_ ? 0x20 : 0; c < 0x80; ++c) {
      if (!is_json_ || (c != '"' && c != '\\')) put(c, Target(c));
    }
    if (is_json_) put('\\', Escapes());
    for (uint32_t lead = 0xC2; lead < 0xE0; ++lead) put(lead, Rest((lead & 0x1F) << 6, 1, 0x80));
    for (uint32_t lead = 0xE0; lead < 0xF0; ++lead) put(lead, Rest((lead & 0xF) << 12, 2, 0x800));
    for (uint32_t lead = 0xF0; lead < 0xF5; ++lead) put(lead, Rest((lead & 7) << 18, 3, 0x10000));
    return targets;
  }

  // The state that awaits `count` more bytes of a character from `first` on, none below `least`.
  uint32_t Rest(uint32_t first, size_t count, uint32_t least) {
    if (count == 0) {
      const bool is_valid =
          first >= least && first <= kLastCodePoint && (first & ~0x7FFU) != 0xD800;
      return is_valid ? Target(first) : ByteAutomaton::kDead;
    }
    const uint32_t step = 1U << (6 * (count - 1));
    const uint32_t last = first + 64 * step - 1;
    if (IsDead(first, last, least)) return ByteAutomaton::kDead;
    if (IsUniform(first, last, least)) return Uniform(Target(first), count);
    std::map<uint8_t, uint32_t> targets;
    for (uint32_t i = 0; i < 64; ++i) {
      const uint32_t target = Rest(first + i * step, count - 1, least);
      if (target != ByteAutomaton::kDead) targets[static_cast<uint8_t>(0x80 + i)] = target;
    }
    return Shared(Join(targets));
  }
  // Whether no code point of a range leads anywhere: there is none, or no edge for it.
  bool IsDead(uint32_t first, uint32_t last, uint32_t least) const {
    if (last < least || first > kLastCodePoint || (first >= 0xD800 && last <= 0xDFFF)) return true;
    return std::ranges::none_of(edges_, [&](const CharAutomaton::Edge& edge) {
      return edge.range.first <= last && edge.range.last >= first;
    });
  }
  bool IsUniform(uint32_t first, uint32_t last, uint32_t least) const {
    if (first < least || last > kLastCodePoint || (first <= 0xDFFF && last >= 0xD800)) return false;
    for (const auto& edge : edges_) {
      if (first > edge.range.last) continue;
      return last < edge.range.first || (first >= edge.range.first && last <= edge.range.last);
    }
    return true;
  }
  uint32_t Uniform(uint32_t target, size_t count) {
    for (size_t i = 0; i < count && target != ByteAutomaton::kDead; ++i) {
      target = Shared({{0x80, 0xBF, target}});
    }
    return target;
  }

  // After a backslash: only what has no other spelling.
  uint32_t Escapes() {
    std::map<uint8_t, uint32_t> letters;
    for (const auto& [letter, meant] : kEscapes) {
      const uint32_t target = Target(static_cast<uint8_t>(meant));
      if (target != ByteAutomaton::kDead) letters[static_cast<uint8_t>(letter)] = target;
    }
    std::map<uint8_t, uint32_t> high;  // \u00 and this digit
    for (uint32_t digit = 0; digit < 2; ++digit) {
      std::map<uint8_t, uint32_t> low;
      for (uint32_t i = 0; i < 16; ++i) {
        const uint32_t c = digit * 16 + i;
        const bool is_short = c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t';
        const uint32_t target = is_short ? ByteAutomaton::kDead : Target(c);
        if (target != ByteAutomaton::kDead) {
          low[static_cast<uint8_t>("0123456789abcdef"[i])] = target;
        }
      }
      const uint32_t state = Shared(Join(low));
      if (state != ByteAutomaton::kDead) high[static_cast<uint8_t>('0' + digit)] = state;
    }
    uint32_t state = Shared(Join(high));
    for (int i = 0; i < 2 && state != ByteAutomaton::kDead; ++i)
      state = Shared({{'0', '0', state}});
    if (state != ByteAutomaton::kDead) letters['u'] = state;
    return Shared(Join(letters));
  }

  static std::vector<Edge> Join(const std::map<uint8_t, uint32_t>& targets) {
    std::vector<Edge> edges;
    for (const auto& [byte, target] : targets) {
      if (!edges.empty() && edges.back().target == target && edges.back().last + 1 == byte) {
        edges.back().last = byte;
      } else {
        edges.push_back({byte, byte, target});
      }
    }
    return edges;
  }
  // A state inside a character; equal ones are one.
  uint32_t Shared(std::vector<Edge> edges) {
    if (edges.empty()) return ByteAutomaton::kDead;
    const auto [place, is_new] = shared_.try_emplace(edges, static_cast<uint32_t>(states_.size()));
    if (is_new) states_.push_back({std::move(edges), false, false, 0});
    return place->second;
  }

  const CharAutomaton& automaton_;
  const bool is_json_;
  std::vector<CharAutomaton::Edge> edges_;  // of the state that is being spelled
  std::vector<State> states_;
  std::map<std::vector<Edge>, uint32_t> shared_;
};

}  // namespace

ByteAutomaton::ByteAutomaton(std::vector<State> states) : states_(std::move(states)) {
  std::vector<std::vector<uint32_t>> sources(states_.size());
  for (uint32_t i = 0; i < states_.size(); ++i) {
    for (const Edge& edge : states_[i].edges) sources[edge.target].push_back(i);
  }
  // Breadth first from the ends, a state that ends a code point being one further than those that
  // follow it.
  std::deque<uint32_t> pending;
  for (uint32_t i = 0; i < states_.size(); ++i) {
    states_[i].distance = states_[i].accepts ? 0 : kFar;
    if (states_[i].accepts) pending.push_back(i);
  }
  while (!pending.empty()) {
    const uint32_t i = pending.front();
    pending.pop_front();
    const uint32_t cost = states_[i].ends_char ? 1 : 0;
    for (const uint32_t source : sources[i]) {
      const uint32_t distance = states_[i].distance + cost;
      if (distance >= states_[source].distance) continue;
      states_[source].distance = distance;
      cost == 0 ? pending.push_front(source) : pending.push_back(source);
    }
  }
  for (State& state : states_) {
    std::erase_if(state.edges,
                  [&](const Edge& edge) { return states_[edge.target].distance == kFar; });
  }
  if (!states_.empty() && states_[0].distance == kFar) states_.clear();
}

ByteAutomaton ByteAutomaton::Of(const CharAutomaton& automaton, TextSpelling spelling) {
  if (automaton.empty()) return ByteAutomaton(std::vector<State>());
  return ByteAutomaton(Speller(automaton, spelling).Spell());
}

ByteAutomaton ByteAutomaton::OneOf(std::span<const std::string> texts) {
  std::vector<std::map<uint8_t, uint32_t>> tree(1);
  std::vector<State> states(1);
  for (const std::string& text : texts) {
    uint32_t at = 0;
    for (const char c : text) {
      const auto next = static_cast<uint32_t>(tree.size());
      const auto [place, is_new] = tree[at].try_emplace(static_cast<uint8_t>(c), next);
      at = place->second;
      if (!is_new) continue;
      tree.emplace_back();
      states.emplace_back();
    }
    states[at].accepts = true;
  }
  if (texts.empty()) states.clear();
  for (size_t i = 0; i < states.size(); ++i) {
    for (const auto& [byte, target] : tree[i]) states[i].edges.push_back({byte, byte, target});
  }
  return ByteAutomaton(std::move(states));
}

ByteAutomaton ByteAutomaton::AnyBytes() { return ByteAutomaton({{{{0, 255, 0}}, true, true, 0}}); }

ByteAutomaton ByteAutomaton::AnyText(TextSpelling spelling) {
  std::vector<State> states = Speller(CharAutomaton::Any(), spelling).Spell();
  if (spelling == TextSpelling::kRaw) return ByteAutomaton(std::move(states));
  const auto add = [&](std::vector<Edge> edges) {
    states.push_back({std::move(edges), false, false, 0});
    return static_cast<uint32_t>(states.size() - 1);
  };
  const auto hex = [&](uint32_t target) {
    return add({{'0', '9', target}, {'A', 'F', target}, {'a', 'f', target}});
  };
  constexpr uint32_t kText = 1;
  const uint32_t last = hex(kText);
  const uint32_t last2 = hex(last);
  const uint32_t last3 = hex(last2);
  // The second half of a pair: \uDC00 to \uDFFF.
  const uint32_t low = add({{'C', 'F', last2}, {'c', 'f', last2}});
  const uint32_t low_unit = add({{'D', 'D', low}, {'d', 'd', low}});
  const uint32_t low_u = add({{'u', 'u', low_unit}});
  const uint32_t low_backslash = add({{'\\', '\\', low_u}});
  const uint32_t high2 = hex(hex(low_backslash));
  // After \ud: a character's own digits, or the first half of a pair.
  const uint32_t after_d =
      add({{'0', '7', last2}, {'8', '9', high2}, {'A', 'B', high2}, {'a', 'b', high2}});
  const uint32_t unit = add({{'0', '9', last3},
                             {'A', 'C', last3},
                             {'D', 'D', after_d},
                             {'E', 'F', last3},
                             {'a', 'c', last3},
                             {'d', 'd', after_d},
                             {'e', 'f', last3}});
  const uint32_t escape = add({{'"', '"', kText},
                               {'/', '/', kText},
                               {'\\', '\\', kText},
                               {'b', 'b', kText},
                               {'f', 'f', kText},
                               {'n', 'n', kText},
                               {'r', 'r', kText},
                               {'t', 't', kText},
                               {'u', 'u', unit}});
  for (Edge& edge : states[kText].edges) {
    if (edge.first == '\\') edge.target = escape;
  }
  return ByteAutomaton(std::move(states));
}

}  // namespace thimble
