#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/token_id.h"
#include "grammar/grammar_states.h"
#include "text/tokenizer.h"

namespace thimble {

/// A set of token ids.
class TokenMask {
 public:
  explicit TokenMask(size_t vocab_size) : words_((vocab_size + 63) / 64) {}
  bool Has(TokenId id) const { return (words_[id / 64] >> (id % 64) & 1) != 0; }
  void Put(TokenId id) { words_[id / 64] |= uint64_t{1} << (id % 64); }
  size_t Count() const;
  size_t memory_bytes() const { return words_.size() * sizeof(uint64_t); }

 private:
  std::vector<uint64_t> words_;
};

/// A vocabulary's ordinary tokens as a tree of their bytes, so that a grammar looks at bytes that
/// many tokens begin with once. Immutable; any thread. 4.4 MiB for Kimi's 163,584 tokens.
class TokenTrie {
 public:
  /// Borrows nothing.
  explicit TokenTrie(const Tokenizer& tokenizer);

  /// Puts the tokens that may come in `state` into *mask. States may be compacted; `*state` then
  /// has its new number.
  void Walk(GrammarStates& states, GrammarStates::Id* state, TokenMask* mask) const;

  size_t memory_bytes() const { return nodes_.size() * sizeof(Node); }
  /// What a server should set aside for a tree of this vocabulary, before there is one.
  static size_t EstimateBytes(const Tokenizer& tokenizer);

 private:
  static constexpr TokenId kNoToken = ~TokenId{0};
  // In the order of a walk: a node, then everything below it.
  struct Node {
    TokenId token = kNoToken;  // that ends here
    uint32_t end = 0;          // index of the first node that is not below this one
    uint16_t depth = 0;        // bytes of the token up to here
    uint8_t byte = 0;
  };
  std::vector<Node> nodes_;
  size_t longest_ = 0;
};

/// A tree that is made when it is first asked for. Any thread.
class LazyTokenTrie {
 public:
  /// Borrows the tokenizer.
  explicit LazyTokenTrie(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  const TokenTrie& Get();
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  const Tokenizer& tokenizer_;
  std::once_flag once_;
  std::unique_ptr<TokenTrie> trie_;
};

}  // namespace thimble
