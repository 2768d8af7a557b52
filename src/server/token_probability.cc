#include "server/token_probability.h"

#include <algorithm>

#include "engine/log_sum.h"

namespace thimble::server {
namespace {

// The `count` largest logits' tokens, likeliest first. Sorts only those: a copy of the vocabulary
// for each token would lie outside the memory budget.
std::vector<TokenId> Likeliest(std::span<const float> logits, size_t count) {
  count = std::min(count, logits.size());
  std::vector<TokenId> top;
  if (count == 0) return top;
  top.reserve(count + 1);
  const auto likelier = [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  for (TokenId id = 0; id < logits.size(); ++id) {
    if (top.size() == count && !likelier(id, top.back())) continue;
    top.insert(std::ranges::upper_bound(top, id, likelier), id);
    if (top.size() > count) top.pop_back();
  }
  return top;
}

}  // namespace

SampledToken Describe(TokenId id, std::span<const float> logits, std::optional<size_t> num_top) {
  SampledToken token = {id, 0, {}};
  if (!num_top) return token;
  const double log_sum = LogSumExp(logits);
  token.logprob = static_cast<double>(logits[id]) - log_sum;
  for (const TokenId other : Likeliest(logits, *num_top)) {
    token.top.push_back({other, static_cast<double>(logits[other]) - log_sum});
  }
  return token;
}

}  // namespace thimble::server
