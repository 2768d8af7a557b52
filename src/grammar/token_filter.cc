#include "grammar/token_filter.h"

#include <algorithm>

#include "base/error.h"

namespace thimble {

TokenFilter::TokenFilter(std::shared_ptr<LazyTokenTrie> trie, Grammar grammar,
                         std::string_view begun)
    : trie_(std::move(trie)),
      tokenizer_(trie_->tokenizer()),
      grammar_(std::move(grammar)),
      states_(grammar_),
      state_(states_.start()) {
  for (const char c : begun) {
    state_ = states_.Step(state_, static_cast<unsigned char>(c));
    MakeRoom();
  }
  if (state_ == GrammarStates::kDead) {
    throw Error(
        ErrorCode::kUsage,
        "the answer that is to be continued is not the beginning of one that its format allows");
  }
}

uint64_t TokenFilter::OwnBytes(const Tokenizer& tokenizer, size_t num_filters) {
  // States come of going through the vocabulary: a small one makes few.
  constexpr uint64_t kBytesPerToken = 48;
  const uint64_t states =
      std::min<uint64_t>(GrammarStates::kMaxBytes, kBytesPerToken * tokenizer.vocab_size());
  const uint64_t masks = kMaxMasks * TokenMask(tokenizer.vocab_size()).memory_bytes();
  return TokenTrie::EstimateBytes(tokenizer) + num_filters * (states + masks);
}

const TokenMask& TokenFilter::Allowed() {
  const auto known =
      std::ranges::find(masks_, state_, &std::pair<GrammarStates::Id, TokenMask>::first);
  if (known != masks_.end()) return known->second;
  TokenMask mask(tokenizer_.vocab_size());
  if (ended()) {
    for (TokenId id = 0; id < tokenizer_.vocab_size(); ++id) mask.Put(id);
  } else {
    const GrammarStates::Id before = state_;
    trie_->Get().Walk(states_, &state_, &mask);
    if (state_ != before) masks_.clear();  // compacted: the numbers are others
    for (const uint32_t symbol : states_.Specials(state_)) {
      mask.Put(static_cast<TokenId>(tokenizer_.num_ranks() + symbol - Grammar::kFirstSpecial));
    }
  }
  if (masks_.size() == kMaxMasks) masks_.erase(masks_.begin());
  masks_.emplace_back(state_, std::move(mask));
  return masks_.back().second;
}

GrammarStates::Id TokenFilter::After(TokenId id) {
  if (tokenizer_.IsReserved(id)) {
    return states_.Step(
        state_, static_cast<uint32_t>(Grammar::kFirstSpecial + id - tokenizer_.num_ranks()));
  }
  GrammarStates::Id state = state_;
  for (const char c : tokenizer_.TokenBytes(id)) {
    state = states_.Step(state, static_cast<unsigned char>(c));
  }
  return state;
}

bool TokenFilter::Allows(TokenId id) { return ended() || After(id) != GrammarStates::kDead; }

void TokenFilter::Accept(TokenId id) {
  const GrammarStates::Id next = ended() ? GrammarStates::kDead : After(id);
  if (next != GrammarStates::kDead) state_ = next;
  MakeRoom();
}

void TokenFilter::MakeRoom() {
  if (!states_.full()) return;
  states_.Compact({&state_, 1});
  masks_.clear();
}

std::string TokenFilter::Forced(size_t most) {
  std::string bytes;
  GrammarStates::Id state = state_;
  while (bytes.size() < most && !states_.complete(state) && states_.Specials(state).empty()) {
    uint32_t found = 0;
    size_t count = 0;
    for (uint32_t byte = 0; byte < 256 && count < 2; ++byte) {
      if (states_.Step(state, byte) == GrammarStates::kDead) continue;
      found = byte;
      ++count;
    }
    if (count != 1) break;
    bytes += static_cast<char>(found);
    state = states_.Step(state, found);
  }
  return bytes;
}

}  // namespace thimble
