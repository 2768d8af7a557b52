#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "json/json_value.h"

namespace thimble {

/// A grammar over bytes of the compact JSON (no spaces between tokens) that a schema allows. Nodes
/// refer to one another by number, so it may be recursive. Immutable once built.
class JsonGrammar {
 public:
  enum class Kind : uint8_t {
    kLiteral,   // the bytes of `text`
    kString,    // a JSON string
    kNumber,    // a JSON number
    kInteger,   // one without fraction and exponent
    kSequence,  // all of `children`, in turn
    kChoice,    // one of `children`
  };
  struct Node {
    Kind kind = Kind::kLiteral;
    std::string text;
    std::vector<uint32_t> children;
  };

  /// Any JSON object.
  static JsonGrammar AnyObject();
  /// What `schema` allows. Understood are: type (a name or several), properties, required,
  /// additionalProperties, items, minItems, maxItems, enum, const, anyOf, oneOf, and $ref to places
  /// in the schema; what only annotates is passed over. Members come in the schema's order; others
  /// than its properties only where additionalProperties says so. Error(kUsage) naming a keyword
  /// outside of these, a $ref to nowhere, or too large a schema.
  static JsonGrammar FromSchema(const JsonValue& schema);

  const Node& node(uint32_t index) const { return nodes_[index]; }
  uint32_t root() const { return root_; }

 private:
  friend class GrammarBuilder;
  std::vector<Node> nodes_;
  uint32_t root_ = 0;
};

/// Where in a grammar a text stands: every way in which it may be read so far. Copied to try bytes.
class JsonState {
 public:
  explicit JsonState(const JsonGrammar& grammar);

  /// Goes on by `bytes`; false, and the state is of no more use, where they cannot follow.
  bool Feed(std::string_view bytes);
  /// Whether the text so far is a whole value.
  bool complete() const { return complete_; }

 private:
  struct Frame {
    uint32_t node = 0;
    uint32_t position = 0;  // in a literal or sequence; state of a string's or number's automaton
    bool operator==(const Frame&) const = default;
  };
  using Stack = std::vector<Frame>;  // the innermost last

  void Expand(Stack stack, size_t depth);
  void Step(const Stack& stack, unsigned char byte);
  void Continue(Stack stack, uint32_t position);
  void Leave(Stack stack, size_t depth);

  const JsonGrammar* grammar_;
  std::vector<Stack> stacks_;  // each with a node on top that takes a byte
  bool complete_ = false;
  size_t work_ = 0;  // nodes entered since the last byte
};

}  // namespace thimble
