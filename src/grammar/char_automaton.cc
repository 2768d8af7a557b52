#include "grammar/char_automaton.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace thimble {
std::vector<CharRange> NormaliseRanges(std::vector<CharRange> ranges) {
  std::ranges::sort(ranges, {}, &CharRange::first);
  std::vector<CharRange> joined;
  for (const CharRange& range : ranges) {
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

std::vector<CharRange> InvertRanges(std::vector<CharRange> ranges) {
  std::vector<CharRange> inverse;
  uint32_t next = 0;
  for (const CharRange& range : NormaliseRanges(std::move(ranges))) {
    if (range.first > next) inverse.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) inverse.push_back({next, kLastCodePoint});
  return inverse;
}

std::vector<uint32_t> CodePoints(std::string_view text) {
  std::vector<uint32_t> points;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80 ? 1 : (lead < 0xE0 ? 2 : (lead < 0xF0 ? 3 : 4));
    uint32_t point = length == 1 ? lead : lead & (0x7FU >> length);
    for (size_t k = 1; k < length && i + k < text.size(); ++k) {
      point = point << 6 | (static_cast<unsigned char>(text[i + k]) & 0x3FU);
    }
    points.push_back(std::min(point, kLastCodePoint));
    i += length;
  }
  return points;
}

CharAutomaton::CharAutomaton(std::vector<uint32_t> cuts, std::vector<uint32_t> next,
                             std::vector<bool> accepts)
    : cuts_(std::move(cuts)), next_(std::move(next)), accepts_(std::move(accepts)) {
  Trim();
}

CharAutomaton CharAutomaton::Any() { return {{0}, {0}, {true}}; }

CharAutomaton CharAutomaton::AtLeast(size_t min) {
  if (min >= kMaxStates) throw TooLarge();
  std::vector<uint32_t> next(min + 1);
  std::vector<bool> accepts(min + 1, false);
  for (size_t i = 0; i <= min; ++i) next[i] = static_cast<uint32_t>(std::min(i + 1, min));
  accepts[min] = true;
  return {{0}, std::move(next), std::move(accepts)};
}

CharAutomaton CharAutomaton::Of(std::span<const std::string> texts) {
  // A tree of the texts, with a class for each code point that occurs and one for the gaps.
  std::vector<std::map<uint32_t, uint32_t>> tree(1);
  std::vector<bool> accepts(1, false);
  std::vector<uint32_t> cuts = {0};
  for (const std::string& text : texts) {
    uint32_t at = 0;
    for (const uint32_t point : CodePoints(text)) {
      const auto [place, is_new] = tree[at].try_emplace(point, static_cast<uint32_t>(tree.size()));
      at = place->second;
      if (!is_new) continue;
      if (tree.size() == kMaxStates) throw TooLarge();
      tree.emplace_back();
      accepts.push_back(false);
      cuts.insert(cuts.end(), {point, point + 1});
    }
    accepts[at] = true;
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<uint32_t> next(tree.size() * cuts.size(), kDead);
  for (size_t state = 0; state < tree.size(); ++state) {
    for (const auto& [point, target] : tree[state]) {
      const auto cut = std::ranges::lower_bound(cuts, point) - cuts.begin();
      next[state * cuts.size() + static_cast<size_t>(cut)] = target;
    }
  }
  return {std::move(cuts), std::move(next), std::move(accepts)};
}

size_t CharAutomaton::ClassOf(uint32_t code_point) const {
  return static_cast<size_t>(std::ranges::upper_bound(cuts_, code_point) - cuts_.begin()) - 1;
}

bool CharAutomaton::Takes(std::string_view text) const {
  uint32_t state = empty() ? kDead : 0;
  for (const uint32_t point : CodePoints(text)) {
    if (state == kDead) return false;
    state = next_[state * cuts_.size() + ClassOf(point)];
  }
  return state != kDead && accepts_[state];
}

std::vector<CharAutomaton::Edge> CharAutomaton::Edges(uint32_t state) const {
  std::vector<Edge> edges;
  for (size_t c = 0; c < cuts_.size(); ++c) {
    const uint32_t target = next_[state * cuts_.size() + c];
    const uint32_t last = c + 1 < cuts_.size() ? cuts_[c + 1] - 1 : kLastCodePoint;
    if (target == kDead) continue;
    if (!edges.empty() && edges.back().target == target &&
        edges.back().range.last + 1 == cuts_[c]) {
      edges.back().range.last = last;
    } else {
      edges.push_back({{cuts_[c], last}, target});
    }
  }
  return edges;
}

// The product: texts that this one takes and the other one takes, or does not.
CharAutomaton CharAutomaton::Combine(const CharAutomaton& other, bool both, size_t* work) const {
  if (empty() || other.empty()) return both || empty() ? CharAutomaton({0}, {}, {}) : *this;
  std::vector<uint32_t> cuts = cuts_;
  cuts.insert(cuts.end(), other.cuts_.begin(), other.cuts_.end());
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> known = {{{0, 0}, 0}};
  std::vector<std::pair<uint32_t, uint32_t>> states = {{0, 0}};
  std::vector<uint32_t> next;
  std::vector<bool> accepts;
  for (size_t i = 0; i < states.size(); ++i) {
    const auto [mine, its] = states[i];
    if (cuts.size() > *work) throw TooLarge();
    *work -= cuts.size();
    accepts.push_back(accepts_[mine] && (its != kDead && other.accepts_[its]) == both);
    for (const uint32_t cut : cuts) {
      const uint32_t a = next_[mine * cuts_.size() + ClassOf(cut)];
      const uint32_t b =
          its == kDead ? kDead : other.next_[its * other.cuts_.size() + other.ClassOf(cut)];
      if (a == kDead || (both && b == kDead)) {
        next.push_back(kDead);
        continue;
      }
      const auto [place, is_new] = known.try_emplace({a, b}, static_cast<uint32_t>(states.size()));
      if (is_new) states.emplace_back(a, b);
      if (states.size() > kMaxStates) throw TooLarge();
      next.push_back(place->second);
    }
  }
  return {std::move(cuts), std::move(next), std::move(accepts)};
}

void CharAutomaton::Trim() {
  const size_t classes = cuts_.size();
  std::vector<std::vector<uint32_t>> sources(num_states());
  std::vector<bool> alive = accepts_;
  std::vector<uint32_t> pending;
  for (uint32_t state = 0; state < num_states(); ++state) {
    if (alive[state]) pending.push_back(state);
    for (size_t c = 0; c < classes; ++c) {
      const uint32_t target = next_[state * classes + c];
      const bool is_new =
          target != kDead && (sources[target].empty() || sources[target].back() != state);
      if (is_new) sources[target].push_back(state);
    }
  }
  while (!pending.empty()) {
    const uint32_t state = pending.back();
    pending.pop_back();
    for (const uint32_t source : sources[state]) {
      if (!alive[source]) pending.push_back(source);
      alive[source] = true;
    }
  }
  if (!alive.empty() && !alive[0]) alive.assign(alive.size(), false);
  std::vector<uint32_t> moved(num_states(), kDead);
  uint32_t count = 0;
  for (uint32_t state = 0; state < num_states(); ++state) {
    if (alive[state]) moved[state] = count++;
  }
  for (uint32_t state = 0; state < num_states(); ++state) {
    if (moved[state] == kDead) continue;
    for (size_t c = 0; c < classes; ++c) {
      const uint32_t target = next_[state * classes + c];
      next_[moved[state] * classes + c] = target == kDead ? kDead : moved[target];
    }
    accepts_[moved[state]] = accepts_[state];
  }
  next_.resize(count * classes);
  accepts_.resize(count);
}

}  // namespace thimble
