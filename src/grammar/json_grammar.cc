#include "grammar/json_grammar.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/error.h"

namespace thimble {
namespace {

constexpr size_t kMaxNodes = 20'000;
constexpr size_t kMaxItems = 256;    // that minItems or maxItems may name
constexpr size_t kMaxDepth = 500;    // of nodes entered without a byte: a $ref that is only itself
constexpr size_t kMaxStacks = 200;   // ways of reading
constexpr size_t kMaxWork = 20'000;  // nodes entered for one byte: alternatives in alternatives

[[noreturn]] void Reject(const std::string& message) {
  throw Error(ErrorCode::kUsage, "response_format.json_schema: " + message);
}

}  // namespace

// Makes the nodes of a schema.
class GrammarBuilder {
 public:
  explicit GrammarBuilder(const JsonValue* root) : schema_(root) {}

  JsonGrammar Build() {
    JsonGrammar grammar;
    grammar.root_ = schema_ == nullptr ? AnyObject() : Schema(*schema_);
    grammar.nodes_ = std::move(nodes_);
    return grammar;
  }

 private:
  using Kind = JsonGrammar::Kind;
  using Nodes = std::vector<uint32_t>;

  uint32_t Add(Kind kind, std::string text = {}, Nodes children = {}) {
    if (nodes_.size() == kMaxNodes) Reject("the schema is too large");
    nodes_.push_back({kind, std::move(text), std::move(children)});
    return static_cast<uint32_t>(nodes_.size() - 1);
  }
  uint32_t Literal(const std::string& text) { return Add(Kind::kLiteral, text); }
  uint32_t Sequence(Nodes children) { return Add(Kind::kSequence, {}, std::move(children)); }
  uint32_t Choice(Nodes children) { return Add(Kind::kChoice, {}, std::move(children)); }
  uint32_t Nothing() { return Literal(""); }

  // part*, as a node that refers to itself.
  uint32_t Repeat(uint32_t part) {
    const uint32_t repeat = Choice({});
    const uint32_t more = Sequence({part, repeat});
    nodes_[repeat].children = {Nothing(), more};
    return repeat;
  }

  // The members of an object whose names nobody has fixed, after `before`.
  uint32_t Member(const std::string& before, uint32_t value) {
    return Sequence({Literal(before), Add(Kind::kString), Literal(":"), value});
  }
  uint32_t FreeMembers(bool is_first, uint32_t value) {
    const uint32_t more = Repeat(Member(",", value));
    if (!is_first) return more;
    return Choice({Nothing(), Sequence({Member("", value), more})});
  }
  uint32_t ObjectOf(uint32_t value) {
    return Sequence({Literal("{"), FreeMembers(true, value), Literal("}")});
  }
  uint32_t ArrayOf(uint32_t item, size_t least, size_t most) {
    Nodes parts = {Literal("[")};
    const uint32_t more = Sequence({Literal(","), item});
    for (size_t i = 0; i < least; ++i) parts.push_back(i == 0 ? item : more);
    if (most == kNoLimit) {
      const uint32_t rest = Repeat(more);
      parts.push_back(least > 0 ? rest : Choice({Nothing(), Sequence({item, rest})}));
    } else {
      // From the inside: (, item (, item)?)?
      uint32_t rest = Nothing();
      for (size_t i = most; i > least; --i) {
        rest = Choice({Nothing(), Sequence({i == 1 ? item : more, rest})});
      }
      parts.push_back(rest);
    }
    parts.push_back(Literal("]"));
    return Sequence(std::move(parts));
  }

  uint32_t Any() {
    if (any_ == kNone) {
      any_ = Choice({});
      const uint32_t object = ObjectOf(any_);
      const uint32_t array = ArrayOf(any_, 0, kNoLimit);
      nodes_[any_].children = {
          object,           array,          Add(Kind::kString), Add(Kind::kNumber), Literal("true"),
          Literal("false"), Literal("null")};
    }
    return any_;
  }
  uint32_t AnyObject() { return ObjectOf(Any()); }

  uint32_t Schema(const JsonValue& schema) {
    if (schema.is_boolean() && schema.boolean) return Any();
    if (!schema.is_object()) Reject("expected an object as schema");
    // A schema that is being built refers to itself by its node.
    const auto known = built_.find(&schema);
    if (known != built_.end()) return known->second;
    const uint32_t node = Choice({});
    built_[&schema] = node;
    CheckKeywords(schema);
    const Nodes children = Alternatives(schema);
    nodes_[node].children = children;
    return node;
  }

  static void CheckKeywords(const JsonValue& schema) {
    static const std::set<std::string, std::less<>> known = {
        "type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
        "enum", "const", "anyOf", "oneOf", "$ref",
        // These only annotate.
        "title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs",
        "definitions", "deprecated", "readOnly", "writeOnly", "strict"};
    for (const JsonMember& member : schema.members) {
      if (!known.contains(member.key)) Reject("the keyword '" + member.key + "' is not supported");
    }
  }

  Nodes Alternatives(const JsonValue& schema) {
    if (const JsonValue* reference = schema.Find("$ref")) return {Schema(Resolve(*reference))};
    if (const JsonValue* value = schema.Find("const")) return {Value(*value)};
    if (const JsonValue* values = schema.Find("enum")) return Each(*values, "enum", false);
    for (const char* key : {"anyOf", "oneOf"}) {
      if (const JsonValue* options = schema.Find(key)) return Each(*options, key, true);
    }
    const JsonValue* type = schema.Find("type");
    if (type == nullptr && schema.Find("properties") != nullptr) return {Object(schema)};
    if (type == nullptr && schema.Find("items") != nullptr) return {Array(schema)};
    if (type == nullptr) return {Any()};
    if (!type->is_array()) return {Typed(schema, *type)};
    Nodes nodes;
    for (const JsonValue& one : type->items) nodes.push_back(Typed(schema, one));
    return nodes;
  }

  uint32_t Value(const JsonValue& value) { return Literal(WriteJson(value, JsonStyle::kCompact)); }
  Nodes Each(const JsonValue& values, const std::string& key, bool are_schemas) {
    if (!values.is_array() || values.items.empty()) Reject(key + " must be an array, not empty");
    Nodes nodes;
    for (const JsonValue& value : values.items) {
      nodes.push_back(are_schemas ? Schema(value) : Value(value));
    }
    return nodes;
  }

  uint32_t Typed(const JsonValue& schema, const JsonValue& type) {
    const std::string& name = type.text;
    if (!type.is_string()) Reject("type must be a name, or several");
    if (name == "object") return Object(schema);
    if (name == "array") return Array(schema);
    if (name == "string") return Add(Kind::kString);
    if (name == "number") return Add(Kind::kNumber);
    if (name == "integer") return Add(Kind::kInteger);
    if (name == "boolean") return Choice({Literal("true"), Literal("false")});
    if (name == "null") return Literal("null");
    Reject("there is no type '" + name + "'");
  }

  uint32_t Object(const JsonValue& schema) {
    const JsonValue* properties = schema.Find("properties");
    const JsonValue* more = schema.Find("additionalProperties");
    const JsonValue* required = schema.Find("required");
    if (properties != nullptr && !properties->is_object()) Reject("properties must be an object");
    if (required != nullptr && !required->is_array()) Reject("required must be an array");
    std::set<std::string> needed;
    for (size_t i = 0; required != nullptr && i < required->items.size(); ++i) {
      const std::string& name = required->items[i].text;
      if (properties == nullptr || properties->Find(name) == nullptr) {
        Reject("required names '" + name + "', which is none of the properties");
      }
      needed.insert(name);
    }
    // An object of which nothing is said may hold anything.
    const bool is_free = properties == nullptr && more == nullptr;
    const bool is_open = is_free || (more != nullptr && !(more->is_boolean() && !more->boolean));
    const uint32_t value = is_free ? Any() : (is_open ? Schema(*more) : 0);
    // From the last property to the first: what may follow once some member was written, and
    // before any was.
    uint32_t after = is_open ? FreeMembers(false, value) : Nothing();
    uint32_t first = is_open ? FreeMembers(true, value) : Nothing();
    const size_t count = properties == nullptr ? 0 : properties->members.size();
    for (size_t i = count; i-- > 0;) {
      const JsonMember& member = properties->members[i];
      std::string key = "\"";
      EscapeJson(member.key, &key);
      const uint32_t member_value = Sequence({Literal(key + "\":"), Schema(member.value)});
      const uint32_t with_first = Sequence({member_value, after});
      const uint32_t with_after = Sequence({Literal(","), member_value, after});
      const bool is_needed = needed.contains(member.key);
      first = is_needed ? with_first : Choice({with_first, first});
      after = is_needed ? with_after : Choice({with_after, after});
    }
    return Sequence({Literal("{"), first, Literal("}")});
  }

  uint32_t Array(const JsonValue& schema) {
    const auto limit = [&](const char* key, size_t absent) {
      const JsonValue* value = schema.Find(key);
      if (value == nullptr) return absent;
      const double number = value->is_integer() ? value->AsDouble() : -1;
      if (!(number >= 0 && number <= static_cast<double>(kMaxItems))) {
        Reject(std::string(key) + " must be from 0 to " + std::to_string(kMaxItems));
      }
      return static_cast<size_t>(number);
    };
    const size_t least = limit("minItems", 0);
    const size_t most = limit("maxItems", kNoLimit);
    if (least > most) Reject("minItems is above maxItems");
    const JsonValue* items = schema.Find("items");
    return ArrayOf(items == nullptr ? Any() : Schema(*items), least, most);
  }

  // "#/$defs/name": the place in the schema.
  const JsonValue& Resolve(const JsonValue& reference) const {
    std::string_view path = reference.text;
    if (!reference.is_string() || !path.starts_with('#')) Reject("a $ref must begin with '#'");
    path.remove_prefix(1);
    const JsonValue* place = schema_;
    while (path.starts_with('/')) {
      path.remove_prefix(1);
      const size_t end = std::min(path.find('/'), path.size());
      place = place->Find(path.substr(0, end));
      if (place == nullptr) Reject("$ref " + reference.text + " leads nowhere");
      path.remove_prefix(end);
    }
    return *place;
  }

  static constexpr size_t kNoLimit = SIZE_MAX;
  static constexpr uint32_t kNone = UINT32_MAX;

  const JsonValue* schema_;  // null: any object
  std::vector<JsonGrammar::Node> nodes_;
  std::map<const JsonValue*, uint32_t> built_;
  uint32_t any_ = kNone;
};

JsonGrammar JsonGrammar::AnyObject() { return GrammarBuilder(nullptr).Build(); }
JsonGrammar JsonGrammar::FromSchema(const JsonValue& schema) {
  return GrammarBuilder(&schema).Build();
}

namespace {

using Kind = JsonGrammar::Kind;
constexpr uint32_t kDead = UINT32_MAX;

// A string: 0 before it, 1 inside, 2 after a backslash, 3 to 6 the digits of \u still to come, 7 to
// 9 bytes of a character still to come, 10 after it. First bytes of characters are as in Unicode's
// table 3-7 but for the second bytes of E0, ED, F0 and F4, which are checked by 11 to 14.
uint32_t StepString(uint32_t state, unsigned char byte) {
  const bool is_hex = std::string_view("0123456789abcdefABCDEF").find(static_cast<char>(byte)) !=
                      std::string_view::npos;
  switch (state) {
    case 0:
      return byte == '"' ? 1 : kDead;
    case 1:
      if (byte == '"') return 10;
      if (byte == '\\') return 2;
      if (byte < 0x20) return kDead;
      if (byte < 0x80) return 1;
      if (byte < 0xc2) return kDead;
      if (byte < 0xe0) return 7;
      if (byte == 0xe0) return 11;
      if (byte == 0xed) return 12;
      if (byte < 0xf0) return 8;
      if (byte == 0xf0) return 13;
      if (byte < 0xf4) return 9;
      return byte == 0xf4 ? 14 : kDead;
    case 2:
      if (byte == 'u') return 3;
      return std::string_view("\"\\/bfnrt").find(static_cast<char>(byte)) != std::string_view::npos
                 ? 1
                 : kDead;
    case 3:
    case 4:
    case 5:
      return is_hex ? state + 1 : kDead;
    case 6:
      return is_hex ? 1 : kDead;
    case 7:
      return byte >> 6 == 2 ? 1 : kDead;
    case 8:
    case 9:
      return byte >> 6 == 2 ? state - 1 : kDead;
    case 11:
      return byte >= 0xa0 && byte < 0xc0 ? 7 : kDead;
    case 12:
      return byte >= 0x80 && byte < 0xa0 ? 7 : kDead;
    case 13:
      return byte >= 0x90 && byte < 0xc0 ? 8 : kDead;
    case 14:
      return byte >= 0x80 && byte < 0x90 ? 8 : kDead;
    default:
      return kDead;
  }
}

// A number: 0 before it, 1 after '-', 2 after a leading 0, 3 in the integer, 4 after '.', 5 in the
// fraction, 6 after 'e', 7 after its sign, 8 in the exponent.
uint32_t StepNumber(uint32_t state, unsigned char byte, bool is_integer) {
  const bool is_digit = byte >= '0' && byte <= '9';
  const auto after_integer = [&]() -> uint32_t {
    if (is_integer) return kDead;
    if (byte == '.') return 4;
    return byte == 'e' || byte == 'E' ? 6 : kDead;
  };
  switch (state) {
    case 0:
      if (byte == '-') return 1;
      [[fallthrough]];
    case 1:
      if (byte == '0') return 2;
      return is_digit ? 3 : kDead;
    case 2:
      return after_integer();
    case 3:
      return is_digit ? 3 : after_integer();
    case 4:
      return is_digit ? 5 : kDead;
    case 5:
      if (is_digit) return 5;
      return byte == 'e' || byte == 'E' ? 6 : kDead;
    case 6:
      if (byte == '+' || byte == '-') return 7;
      [[fallthrough]];
    case 7:
    case 8:
      return is_digit ? 8 : kDead;
    default:
      return kDead;
  }
}

bool EndsNumber(uint32_t state) { return state == 2 || state == 3 || state == 5 || state == 8; }

}  // namespace

JsonState::JsonState(const JsonGrammar& grammar) : grammar_(&grammar) {
  Expand({{grammar.root(), 0}}, 0);
}

bool JsonState::Feed(std::string_view bytes) {
  for (const char byte : bytes) {
    const std::vector<Stack> before = std::move(stacks_);
    stacks_.clear();
    complete_ = false;
    work_ = 0;
    for (const Stack& stack : before) Step(stack, static_cast<unsigned char>(byte));
    if (stacks_.empty() && !complete_) return false;
  }
  return true;
}

// Enters nodes until one wants a byte.
void JsonState::Expand(Stack stack, size_t depth) {
  if (depth > kMaxDepth || stack.size() > kMaxDepth || stacks_.size() > kMaxStacks) return;
  if (++work_ > kMaxWork) return;
  if (stack.empty()) {
    complete_ = true;
    return;
  }
  const Frame top = stack.back();
  const JsonGrammar::Node& node = grammar_->node(top.node);
  if (node.kind == Kind::kChoice) {
    for (const uint32_t child : node.children) {
      stack.back() = {child, 0};
      Expand(stack, depth + 1);
    }
  } else if (node.kind == Kind::kSequence) {
    if (node.children.empty()) return Leave(std::move(stack), depth);
    const uint32_t child = node.children[top.position];
    // The last child takes the place of its parent, so that lists do not grow the stack.
    if (top.position + 1 == node.children.size()) {
      stack.pop_back();
    } else {
      ++stack.back().position;
    }
    stack.push_back({child, 0});
    Expand(std::move(stack), depth + 1);
  } else if (node.kind == Kind::kLiteral && top.position == node.text.size()) {
    Leave(std::move(stack), depth);
  } else if (std::ranges::find(stacks_, stack) == stacks_.end()) {
    stacks_.push_back(std::move(stack));
  }
}

void JsonState::Leave(Stack stack, size_t depth) {
  stack.pop_back();
  Expand(std::move(stack), depth + 1);
}

void JsonState::Continue(Stack stack, uint32_t position) {
  stack.back().position = position;
  Expand(std::move(stack), 0);
}

void JsonState::Step(const Stack& stack, unsigned char byte) {
  const Frame& top = stack.back();
  const JsonGrammar::Node& node = grammar_->node(top.node);
  if (node.kind == Kind::kLiteral) {
    if (static_cast<unsigned char>(node.text[top.position]) == byte) {
      Continue(stack, top.position + 1);
    }
  } else if (node.kind == Kind::kString) {
    const uint32_t next = StepString(top.position, byte);
    if (next == 10) {
      Leave(stack, 0);
    } else if (next != kDead) {
      Continue(stack, next);
    }
  } else {
    const uint32_t next = StepNumber(top.position, byte, node.kind == Kind::kInteger);
    if (next == kDead) return;
    Continue(stack, next);
    if (EndsNumber(next)) Leave(stack, 0);
  }
}

}  // namespace thimble
