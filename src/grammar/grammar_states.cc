#include "grammar/grammar_states.h"

#include <algorithm>
#include <utility>

namespace thimble {
namespace {

constexpr size_t Mix(size_t hash, uint64_t value) {
  return (hash ^ value) * 0x9E3779B97F4A7C15ULL ^ (hash >> 29);
}

}  // namespace

size_t GrammarStates::FrameHash::operator()(const Frame& frame) const {
  size_t hash = Mix(frame.node, frame.position);
  hash = Mix(hash, frame.count);
  hash = Mix(hash, frame.parent);
  return Mix(hash, frame.written);
}
size_t GrammarStates::TipsHash::operator()(const std::vector<uint32_t>& tips) const {
  size_t hash = tips.size();
  for (const uint32_t tip : tips) hash = Mix(hash, tip);
  return hash;
}

GrammarStates::GrammarStates(const Grammar& grammar) : grammar_(grammar) {
  InternState();  // without tips: kDead
  tasks_.push_back({true, grammar.root(), kRoot});
  Run();
  // NOLINTNEXTLINE(cppcoreguidelines-prefer-member-initializer): only now is it known
  start_ = InternState();
}

std::vector<uint32_t> GrammarStates::Specials(Id state) const {
  std::vector<uint32_t> symbols;
  for (const uint32_t tip : states_[state].tips) {
    const Grammar::Node& node = grammar_.node(frames_[tip].node);
    if (node.kind == Grammar::Kind::kSpecial) symbols.push_back(node.detail);
  }
  return symbols;
}

uint32_t GrammarStates::Intern(const Frame& frame) {
  const auto [place, is_new] = frame_ids_.try_emplace(frame, static_cast<uint32_t>(frames_.size()));
  if (is_new) {
    const Grammar::Kind kind = grammar_.node(frame.node).kind;
    const bool nests = kind == Grammar::Kind::kMembers || kind == Grammar::Kind::kItems;
    depths_.push_back(Depth(frame.parent) + (nests ? 1 : 0));
    frames_.push_back(frame);
  }
  return place->second;
}

// The state of tips_ and complete_, which begin anew.
GrammarStates::Id GrammarStates::InternState() {
  if (tips_.size() > kMaxReadings) tips_.resize(kMaxReadings);
  std::ranges::sort(tips_);
  tips_.erase(std::unique(tips_.begin(), tips_.end()), tips_.end());
  std::vector<uint32_t> key = tips_;
  key.push_back(complete_ ? 1 : 0);
  const auto [place, is_new] =
      state_ids_.try_emplace(std::move(key), static_cast<Id>(states_.size()));
  if (is_new) {
    auto next = std::make_unique<Table>();
    next->fill(states_.empty() ? kDead : kUnknown);
    states_.push_back({tips_, complete_, std::move(next)});
  }
  tips_.clear();
  complete_ = false;
  return place->second;
}

GrammarStates::Id GrammarStates::Compute(Id state, uint32_t symbol) {
  const std::vector<uint32_t> tips = states_[state].tips;
  for (const uint32_t tip : tips) Advance(tip, symbol);
  Run();
  const Id next = InternState();
  if (symbol < 256) (*states_[state].next)[symbol] = next;
  return next;
}

void GrammarStates::Advance(uint32_t tip, uint32_t symbol) {
  Frame frame = frames_[tip];
  const Grammar::Node& node = grammar_.node(frame.node);
  switch (node.kind) {
    case Grammar::Kind::kLiteral:
      if (symbol != static_cast<unsigned char>(node.text[frame.position])) return;
      if (++frame.position == node.text.size()) {
        tasks_.push_back({false, 0, frame.parent});
      } else {
        AddTip(frame);
      }
      return;
    case Grammar::Kind::kSpecial:
      if (symbol == node.detail) tasks_.push_back({false, 0, frame.parent});
      return;
    default:
      if (symbol < 256) AdvanceText(frame, symbol);
  }
}

void GrammarStates::AdvanceText(const Frame& frame, uint32_t symbol) {
  const Grammar::Node& node = grammar_.node(frame.node);
  const ByteAutomaton& automaton = grammar_.automaton(node.detail);
  const uint32_t position = automaton.Step(frame.position, static_cast<uint8_t>(symbol));
  if (position == ByteAutomaton::kDead) return;
  const ByteAutomaton::State& state = automaton.state(position);
  Frame next = frame;
  next.position = position;
  // Counted only as far as that matters, so that other states stay few.
  const bool counts = node.max != Grammar::kNoLimit || next.count < node.min;
  if (state.ends_char && counts) ++next.count;
  if (node.max != Grammar::kNoLimit && uint64_t{next.count} + state.distance > node.max) return;
  if (state.accepts && next.count >= node.min) tasks_.push_back({false, 0, frame.parent});
  if (!state.edges.empty()) AddTip(next);
}

// Follows everything that needs no symbol.
void GrammarStates::Run() {
  entered_.clear();
  while (!tasks_.empty()) {
    const Task task = tasks_.back();
    tasks_.pop_back();
    task.enters ? Enter(task.node, task.frame) : Leave(task.frame);
  }
}

bool GrammarStates::Fits(uint32_t node, uint32_t depth) const {
  const uint32_t nesting = grammar_.nesting(node);
  return nesting != Grammar::kNone && depth + nesting <= Grammar::kMaxNesting;
}

void GrammarStates::Enter(uint32_t index, uint32_t parent) {
  if (!Fits(index, Depth(parent))) return;
  if (!entered_.insert(uint64_t{index} << 32 | parent).second) return;
  const Grammar::Node& node = grammar_.node(index);
  const Frame frame = {index, 0, 0, parent, 0};
  switch (node.kind) {
    case Grammar::Kind::kLiteral:
      if (node.text.empty()) return tasks_.push_back({false, 0, parent});
      return AddTip(frame);
    case Grammar::Kind::kSpecial:
      return AddTip(frame);
    case Grammar::Kind::kText: {
      const auto& state = grammar_.automaton(node.detail).state(0);
      if (state.accepts && node.min == 0) tasks_.push_back({false, 0, parent});
      if (!state.edges.empty()) AddTip(frame);
      return;
    }
    case Grammar::Kind::kSequence:
      if (node.children.empty()) return tasks_.push_back({false, 0, parent});
      if (node.children.size() == 1) return tasks_.push_back({true, node.children[0], parent});
      return tasks_.push_back({true, node.children[0], Intern(frame)});
    case Grammar::Kind::kChoice:
      for (const uint32_t child : node.children) tasks_.push_back({true, child, parent});
      return;
    case Grammar::Kind::kMembers:
      return NextMember(Intern(frame));
    case Grammar::Kind::kItems:
      return NextItem(Intern(frame));
  }
}

void GrammarStates::Leave(uint32_t index) {
  constexpr uint64_t kLeaves = uint64_t{UINT32_MAX} << 32;
  if (!entered_.insert(kLeaves | index).second) return;
  if (index == kRoot) {
    complete_ = true;
    return;
  }
  Frame frame = frames_[index];
  const Grammar::Node& node = grammar_.node(frame.node);
  if (node.kind == Grammar::Kind::kMembers) return NextMember(index);
  if (node.kind == Grammar::Kind::kItems) return NextItem(index);
  const uint32_t child = node.children[++frame.position];
  // The last child needs no frame: what follows it is what follows the sequence.
  const bool is_last = frame.position + 1 == node.children.size();
  tasks_.push_back({true, child, is_last ? frame.parent : Intern(frame)});
}

// Whether all that the written members need is written or can still be.
bool GrammarStates::MeetsNeeds(const Grammar::Members& members, uint64_t written, uint32_t next,
                               uint32_t depth) const {
  if (!members.has_needs) return true;
  uint64_t needed = 0;
  uint64_t checked = 0;
  uint64_t open = written;
  while (open != 0) {
    for (uint32_t i = 0; i < Grammar::kMaxNeeding; ++i) {
      if ((open >> i & 1) == 0) continue;
      for (const uint32_t need : members.members[i].needs) needed |= uint64_t{1} << need;
    }
    checked |= open;
    open = needed & ~checked;
  }
  for (uint32_t i = 0; i < Grammar::kMaxNeeding; ++i) {
    const bool is_missing = (needed & ~written) >> i & 1;
    if (is_missing && (i < next || !Fits(members.members[i].later, depth))) return false;
  }
  return true;
}

// Begins a member; `next` is the one that may come after it.
void GrammarStates::PutMember(Frame frame, const Grammar::Member& member, uint32_t next) {
  const Grammar::Members& members = grammar_.members(grammar_.node(frame.node).detail);
  const uint32_t node = frame.count == 0 ? member.first : member.later;
  if (node == Grammar::kNone) return;
  frame.position = next;
  // Beyond the counts that matter all are alike.
  const bool counts = members.max != Grammar::kNoLimit || frame.count < std::max(members.min, 1U);
  if (counts) ++frame.count;
  tasks_.push_back({true, node, Intern(frame)});
}

// What may come in an object: each member up to the next required one, others after the last, and
// the end. A member is left out where the rest could then not be completed.
void GrammarStates::NextMember(uint32_t index) {
  const Frame frame = frames_[index];
  const uint32_t depth = depths_[index];
  const Grammar::Members& members = grammar_.members(grammar_.node(frame.node).detail);
  const auto& list = members.members;
  const auto count = static_cast<uint32_t>(list.size());
  const bool has_others =
      members.others.later != Grammar::kNone && Fits(members.others.later, depth);
  const auto must = [&](uint32_t i, uint64_t written) {
    if (list[i].required) return true;
    for (uint32_t k = 0; members.has_needs && k < std::min<size_t>(count, 64); ++k) {
      if ((written >> k & 1) != 0 && std::ranges::find(list[k].needs, i) != list[k].needs.end()) {
        return true;
      }
    }
    return false;
  };
  // From the end: how many members can, and how many must, come after each place.
  std::vector<uint32_t> can(count + 1, 0);
  std::vector<uint32_t> have_to(count + 1, 0);
  for (uint32_t i = count; i-- > frame.position;) {
    can[i] = can[i + 1] + (Fits(list[i].later, depth) ? 1 : 0);
    have_to[i] = have_to[i + 1] + (must(i, frame.written) ? 1 : 0);
  }
  const auto can_end_well = [&](uint32_t written_count, uint32_t next) {
    return (has_others || written_count + can[next] >= members.min) &&
           uint64_t{written_count} + have_to[next] <= members.max;
  };
  for (uint32_t i = frame.position; i < count; ++i) {
    Frame with = frame;
    if (members.has_needs && i < Grammar::kMaxNeeding) with.written |= uint64_t{1} << i;
    if (Fits(list[i].later, depth) && can_end_well(frame.count + 1, i + 1) &&
        MeetsNeeds(members, with.written, i + 1, depth)) {
      PutMember(with, list[i], i + 1);
    }
    if (must(i, frame.written)) return;
  }
  if (has_others && frame.count < members.max) PutMember(frame, members.others, count);
  if (frame.count >= members.min) tasks_.push_back({false, 0, frame.parent});
}

void GrammarStates::NextItem(uint32_t index) {
  const Frame frame = frames_[index];
  const Grammar::Items& items = grammar_.items(grammar_.node(frame.node).detail);
  const Grammar::Member& next =
      frame.count < items.prefix.size() ? items.prefix[frame.count] : items.rest;
  // Beyond the counts that matter all items are alike.
  const bool counts = items.max != Grammar::kNoLimit || frame.count < items.min ||
                      frame.count <= items.prefix.size();
  if (frame.count < items.max && next.later != Grammar::kNone) {
    Frame after = frame;
    if (counts) ++after.count;
    const uint32_t node = frame.count == 0 ? next.first : next.later;
    if (node != Grammar::kNone) tasks_.push_back({true, node, Intern(after)});
  }
  if (frame.count >= items.min) tasks_.push_back({false, 0, frame.parent});
}

void GrammarStates::Compact(std::span<Id> live) {
  std::vector<Frame> frames = std::move(frames_);
  std::vector<State> states = std::move(states_);
  frames_.clear();
  depths_.clear();
  frame_ids_.clear();
  states_.clear();
  state_ids_.clear();
  InternState();
  std::unordered_map<uint32_t, uint32_t> moved;
  // Parents first; chains may be long, so without recursion.
  const auto move = [&](uint32_t old) {
    std::vector<uint32_t> chain;
    for (uint32_t at = old; at != kRoot && !moved.contains(at); at = frames[at].parent) {
      chain.push_back(at);
    }
    for (size_t i = chain.size(); i-- > 0;) {
      Frame frame = frames[chain[i]];
      if (frame.parent != kRoot) frame.parent = moved.at(frame.parent);
      moved[chain[i]] = Intern(frame);
    }
    return moved.at(old);
  };
  for (Id& id : live) {
    if (id == kDead) continue;
    for (const uint32_t tip : states[id].tips) tips_.push_back(move(tip));
    complete_ = states[id].complete;
    id = InternState();
  }
  start_ = kDead;
  max_states_ = std::max(kUsualStates, 2 * states_.size());
  max_frames_ = std::max(kUsualFrames, 2 * frames_.size());
}

}  // namespace thimble
