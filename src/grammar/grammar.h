#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/byte_automaton.h"

namespace thimble {

/// What an answer may be: a context-free grammar over bytes and special tokens. Nodes refer to one
/// another by number and may be recursive. Regular parts (texts, numbers, choices of words) are
/// automata; objects and arrays count their members.
class Grammar {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kNoLimit = UINT32_MAX;
  /// How deep objects and arrays may lie in one another: half of what ParseJson reads.
  static constexpr uint32_t kMaxNesting = 100;
  /// Sizes that a grammar may have; beyond them adding throws TooLarge.
  static constexpr size_t kMaxNodes = 100'000;
  static constexpr size_t kMaxAutomatonStates = 100'000;
  struct TooLarge {};

  /// A symbol is a byte, or kFirstSpecial plus the slot of a reserved token.
  static constexpr uint32_t kFirstSpecial = 256;

  enum class Kind : uint8_t { kLiteral, kSpecial, kText, kSequence, kChoice, kMembers, kItems };
  struct Node {
    Kind kind = Kind::kLiteral;
    std::string text;                // of a literal
    uint32_t detail = 0;             // a symbol, or the index of an automaton, members or items
    uint32_t min = 0;                // of a text: code points
    uint32_t max = kNoLimit;         //
    std::vector<uint32_t> children;  // of a sequence or choice
  };

  /// Members of an object, in this order; then any number of others.
  struct Member {
    uint32_t first = kNone;  // its node where it is the object's first member, and
    uint32_t later = kNone;  // where others precede it: with a separator
    bool required = false;
    std::vector<uint32_t> needs;  // other members that must be there if it is; below kMaxNeeding
  };
  static constexpr size_t kMaxNeeding = 64;
  struct Members {
    std::vector<Member> members;
    Member others;  // kNone: there are none
    uint32_t min = 0;
    uint32_t max = kNoLimit;
    bool has_needs = false;
  };
  /// Elements of an array: the nodes in `first` and `later` as of a member.
  struct Items {
    std::vector<Member> prefix;
    Member rest;
    uint32_t min = 0;
    uint32_t max = kNoLimit;
  };

  uint32_t Literal(std::string_view text);
  uint32_t Special(uint32_t slot);
  uint32_t Text(uint32_t automaton, uint32_t min = 0, uint32_t max = kNoLimit);
  uint32_t Sequence(std::vector<uint32_t> children);
  uint32_t Choice(std::vector<uint32_t> children);
  uint32_t AddMembers(Members members);
  uint32_t AddItems(Items items);
  uint32_t AddAutomaton(ByteAutomaton automaton);
  /// For a choice that was made before its children.
  void SetChoice(uint32_t node, std::vector<uint32_t> children);

  /// Sets the root and says whether anything at all fits the grammar. To be called once, last.
  bool Finish(uint32_t root);

  uint32_t root() const { return root_; }
  const Node& node(uint32_t index) const { return nodes_[index]; }
  const ByteAutomaton& automaton(uint32_t index) const { return automata_[index]; }
  const Members& members(uint32_t index) const { return members_[index]; }
  const Items& items(uint32_t index) const { return items_[index]; }
  /// How many objects and arrays in one another a node needs at least; kNone: nothing fits it.
  uint32_t nesting(uint32_t node) const { return nesting_[node]; }

 private:
  uint32_t Add(Node node);
  void RequireNeeds();
  uint32_t LeastNesting(const Node& node) const;
  uint32_t LeastOf(const Members& members) const;
  uint32_t LeastOf(const Items& items) const;
  std::vector<uint32_t> Children(const Node& node) const;

  std::vector<Node> nodes_;
  std::vector<ByteAutomaton> automata_;
  std::vector<Members> members_;
  std::vector<Items> items_;
  std::vector<uint32_t> nesting_;
  size_t automaton_states_ = 0;
  uint32_t root_ = kNone;
};

}  // namespace thimble
