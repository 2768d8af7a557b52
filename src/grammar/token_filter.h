#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/grammar_states.h"
#include "grammar/token_trie.h"

namespace thimble {

/// Says which tokens may come next in an answer that a grammar binds, from its first token to its
/// last. Which tokens these are depends on the answer so far alone. One thread at a time.
///
/// Keeps at most about GrammarStates::kMaxBytes and kMaxMasks sets of tokens.
class TokenFilter {
 public:
  /// The grammar is finished and something fits it. `begun` is what the answer already has, e.g.
  /// the client's own beginning of it; Error(kUsage) where the grammar does not allow that.
  TokenFilter(std::shared_ptr<LazyTokenTrie> trie, Grammar grammar, std::string_view begun = {});
  /// What a server should set aside for `num_filters` of them at once and the tree that they share:
  /// for Kimi's vocabulary 13 MiB and 6 MiB for each.
  static uint64_t OwnBytes(const Tokenizer& tokenizer, size_t num_filters);

  TokenFilter(const TokenFilter&) = delete;
  TokenFilter& operator=(const TokenFilter&) = delete;

  /// The tokens that may come next; never none. Valid until the next call of another method.
  const TokenMask& Allowed();
  /// Whether `id` may come next, without the rest of the vocabulary.
  bool Allows(TokenId id);
  /// It came. What was not allowed is ignored.
  void Accept(TokenId id);
  /// Whether the answer is whole and nothing can follow it; then any token is allowed.
  bool ended() const { return states_.ended(state_); }
  /// The bytes that must come next, whatever the model says, at most `most`. They may end inside of
  /// a character, and how they are cut into tokens is free.
  std::string Forced(size_t most);

 private:
  static constexpr size_t kMaxMasks = 16;

  GrammarStates::Id After(TokenId id);
  void MakeRoom();

  const std::shared_ptr<LazyTokenTrie> trie_;
  const Tokenizer& tokenizer_;
  const Grammar grammar_;
  GrammarStates states_;
  GrammarStates::Id state_;
  std::vector<std::pair<GrammarStates::Id, TokenMask>> masks_;  // of the latest states
};

}  // namespace thimble
