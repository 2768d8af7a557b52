#include "grammar/token_trie.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string_view>

namespace thimble {

size_t TokenMask::Count() const {
  return std::accumulate(words_.begin(), words_.end(), size_t{0}, [](size_t sum, uint64_t word) {
    return sum + static_cast<size_t>(std::popcount(word));
  });
}

TokenTrie::TokenTrie(const Tokenizer& tokenizer) {
  std::vector<TokenId> order(tokenizer.num_ranks());
  std::iota(order.begin(), order.end(), TokenId{0});
  std::ranges::sort(order, {}, [&](TokenId id) { return tokenizer.TokenBytes(id); });
  std::vector<size_t> path;  // the nodes of the bytes of the token before
  std::string_view previous;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
    }
  };
  for (const TokenId id : order) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    const auto* const differs = std::ranges::mismatch(bytes, previous).in1;
    close(static_cast<size_t>(differs - bytes.begin()));
    while (path.size() < bytes.size()) {
      const auto byte = static_cast<uint8_t>(bytes[path.size()]);
      path.push_back(nodes_.size());
      nodes_.push_back({kNoToken, 0, static_cast<uint16_t>(path.size()), byte});
    }
    nodes_.back().token = id;
    previous = bytes;
    longest_ = std::max(longest_, bytes.size());
  }
  close(0);
  nodes_.shrink_to_fit();
}

void TokenTrie::Walk(GrammarStates& states, GrammarStates::Id* state, TokenMask* mask) const {
  std::vector<GrammarStates::Id> path(longest_ + 1, GrammarStates::kDead);
  path[0] = *state;
  for (size_t i = 0; i < nodes_.size();) {
    const Node& node = nodes_[i];
    const GrammarStates::Id next = states.Step(path[node.depth - 1], node.byte);
    if (next == GrammarStates::kDead) {
      i = node.end;
      continue;
    }
    path[node.depth] = next;
    if (node.token != kNoToken) mask->Put(node.token);
    if (states.full()) states.Compact(std::span(path).first(node.depth + size_t{1}));
    ++i;
  }
  *state = path[0];
}

// Every byte of the vocabulary could be a node of its own. Prefixes are shared, which in Kimi's
// vocabulary leaves a third of them; the rest is room for making the tree.
size_t TokenTrie::EstimateBytes(const Tokenizer& tokenizer) {
  size_t bytes = 0;
  for (TokenId id = 0; id < tokenizer.num_ranks(); ++id) bytes += tokenizer.TokenBytes(id).size();
  return bytes * sizeof(Node);
}

const TokenTrie& LazyTokenTrie::Get() {
  std::call_once(once_, [&] { trie_ = std::make_unique<TokenTrie>(tokenizer_); });
  return *trie_;
}

}  // namespace thimble
