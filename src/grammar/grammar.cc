#include "grammar/grammar.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace thimble {

uint32_t Grammar::Add(Node node) {
  if (nodes_.size() == kMaxNodes) throw TooLarge();
  nodes_.push_back(std::move(node));
  return static_cast<uint32_t>(nodes_.size() - 1);
}
uint32_t Grammar::Literal(std::string_view text) {
  return Add({.kind = Kind::kLiteral, .text = std::string(text), .children = {}});
}
uint32_t Grammar::Special(uint32_t slot) {
  return Add({.kind = Kind::kSpecial, .text = {}, .detail = kFirstSpecial + slot, .children = {}});
}
uint32_t Grammar::Text(uint32_t automaton, uint32_t min, uint32_t max) {
  return Add({Kind::kText, {}, automaton, min, max, {}});
}
uint32_t Grammar::Sequence(std::vector<uint32_t> children) {
  return Add({.kind = Kind::kSequence, .text = {}, .children = std::move(children)});
}
uint32_t Grammar::Choice(std::vector<uint32_t> children) {
  return Add({.kind = Kind::kChoice, .text = {}, .children = std::move(children)});
}
uint32_t Grammar::AddMembers(Members members) {
  for (const Member& member : members.members) {
    members.has_needs = members.has_needs || !member.needs.empty();
  }
  members_.push_back(std::move(members));
  return Add({.kind = Kind::kMembers,
              .text = {},
              .detail = static_cast<uint32_t>(members_.size() - 1),
              .children = {}});
}
uint32_t Grammar::AddItems(Items items) {
  items_.push_back(std::move(items));
  return Add({.kind = Kind::kItems,
              .text = {},
              .detail = static_cast<uint32_t>(items_.size() - 1),
              .children = {}});
}
uint32_t Grammar::AddAutomaton(ByteAutomaton automaton) {
  automaton_states_ += automaton.num_states();
  if (automaton_states_ > kMaxAutomatonStates) throw TooLarge();
  automata_.push_back(std::move(automaton));
  return static_cast<uint32_t>(automata_.size() - 1);
}
void Grammar::SetChoice(uint32_t node, std::vector<uint32_t> children) {
  nodes_[node].children = std::move(children);
}

// A member that a required one needs is required.
void Grammar::RequireNeeds() {
  for (Members& members : members_) {
    bool changed = members.has_needs;
    while (changed) {
      changed = false;
      for (const Member& member : members.members) {
        for (const uint32_t need : member.needs) {
          if (!member.required || members.members[need].required) continue;
          members.members[need].required = true;
          changed = true;
        }
      }
    }
  }
}

bool Grammar::Finish(uint32_t root) {
  root_ = root;
  RequireNeeds();
  std::vector<std::vector<uint32_t>> parents(nodes_.size());
  std::deque<uint32_t> pending;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    for (const uint32_t child : Children(nodes_[i])) parents[child].push_back(i);
    pending.push_back(i);
  }
  nesting_.assign(nodes_.size(), kNone);
  while (!pending.empty()) {
    const uint32_t i = pending.front();
    pending.pop_front();
    const uint32_t least = LeastNesting(nodes_[i]);
    if (least >= nesting_[i]) continue;
    nesting_[i] = least;
    pending.insert(pending.end(), parents[i].begin(), parents[i].end());
  }
  return nesting_[root] <= kMaxNesting;
}

std::vector<uint32_t> Grammar::Children(const Node& node) const {
  std::vector<uint32_t> children = node.children;
  const auto add = [&](const Member& member) {
    for (const uint32_t child : {member.first, member.later}) {
      if (child != kNone) children.push_back(child);
    }
  };
  if (node.kind == Kind::kMembers) {
    std::ranges::for_each(members_[node.detail].members, add);
    add(members_[node.detail].others);
  } else if (node.kind == Kind::kItems) {
    std::ranges::for_each(items_[node.detail].prefix, add);
    add(items_[node.detail].rest);
  }
  return children;
}

uint32_t Grammar::LeastNesting(const Node& node) const {
  switch (node.kind) {
    case Kind::kLiteral:
    case Kind::kSpecial:
      return 0;
    case Kind::kText:
      return automata_[node.detail].empty() ? kNone : 0;
    case Kind::kSequence: {
      uint32_t least = 0;
      for (const uint32_t child : node.children) least = std::max(least, nesting_[child]);
      return least;
    }
    case Kind::kChoice: {
      uint32_t least = kNone;
      for (const uint32_t child : node.children) least = std::min(least, nesting_[child]);
      return least;
    }
    case Kind::kMembers:
      return LeastOf(members_[node.detail]);
    case Kind::kItems:
      return LeastOf(items_[node.detail]);
  }
  return kNone;
}

namespace {

uint32_t Deeper(uint32_t nesting) { return nesting == Grammar::kNone ? nesting : nesting + 1; }

}  // namespace

uint32_t Grammar::LeastOf(const Members& members) const {
  uint32_t least = 0;
  size_t count = 0;
  std::vector<uint32_t> optional;
  for (const Member& member : members.members) {
    if (member.required) {
      least = std::max(least, nesting_[member.later]);
      ++count;
    } else {
      optional.push_back(nesting_[member.later]);
    }
  }
  if (count > members.max) return kNone;
  if (count >= members.min) return Deeper(least);
  const size_t missing = members.min - count;
  const uint32_t others = members.others.later == kNone ? kNone : nesting_[members.others.later];
  std::ranges::sort(optional);
  for (size_t i = 0; i < std::min(missing, optional.size() + 1); ++i) {
    least = std::max(least, i < optional.size() ? std::min(optional[i], others) : others);
  }
  return Deeper(least);
}

uint32_t Grammar::LeastOf(const Items& items) const {
  if (items.min > items.max) return kNone;
  uint32_t least = 0;
  for (size_t i = 0; i < items.min; ++i) {
    const Member& item = i < items.prefix.size() ? items.prefix[i] : items.rest;
    if (item.later == kNone) return kNone;
    least = std::max(least, nesting_[item.later]);
    if (i >= items.prefix.size()) break;
  }
  return Deeper(least);
}

}  // namespace thimble
