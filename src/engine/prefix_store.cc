#include "engine/prefix_store.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace thimble {

bool IsPrefix(std::span<const TokenId> prefix, std::span<const TokenId> tokens) {
  return prefix.size() <= tokens.size() && std::ranges::equal(prefix, tokens.first(prefix.size()));
}

bool PrefixStore::Keep(Session& session) {
  const std::vector<TokenId>& tokens = session.tokens();
  if (tokens.empty() || session.poisoned()) return false;
  const auto same = std::ranges::find(entries_, tokens, &Snapshot::tokens);
  if (same != entries_.end() && (same->has_logits() || !session.has_logits())) {
    entries_.splice(entries_.begin(), entries_, same);
    return true;
  }
  if (same != entries_.end()) {
    used_bytes_ -= same->bytes();
    entries_.erase(same);
  }
  const uint64_t bytes =
      Snapshot::Bytes(session.engine().config(), tokens.size(), session.latents());
  if (!MakeRoom(bytes, tokens.size())) return false;
  entries_.push_front(Snapshot::Take(session));
  used_bytes_ += bytes;
  return true;
}

const Snapshot* PrefixStore::Find(std::span<const TokenId> tokens) {
  auto best = entries_.end();
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const std::vector<TokenId>& prefix = entry->tokens();
    const bool is_longer = best == entries_.end() || prefix.size() > best->tokens().size();
    if (!is_longer || (prefix.size() == tokens.size() && !entry->has_logits())) continue;
    if (IsPrefix(prefix, tokens)) best = entry;
  }
  if (best == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, best);
  return &entries_.front();
}

size_t PrefixStore::Resume(Session& session, std::span<const TokenId> tokens) {
  const std::vector<TokenId>& held = session.tokens();
  const bool fits = !session.poisoned() && IsPrefix(held, tokens) &&
                    (held.size() < tokens.size() || session.has_logits());
  const Snapshot* best = Find(tokens);
  if (best != nullptr && (!fits || best->tokens().size() > held.size())) {
    best->RestoreTo(session);
  } else if (!fits) {
    session.Clear();
  }
  return session.num_tokens();
}

// Decide before evicting anything.
bool PrefixStore::MakeRoom(uint64_t bytes, size_t num_tokens) {
  if (bytes > limit_bytes_) return false;
  std::vector<std::list<Snapshot>::iterator> dropped;
  uint64_t left = used_bytes_;
  for (auto entry = entries_.end(); left + bytes > limit_bytes_ && entry != entries_.begin();) {
    --entry;
    if (num_tokens < kShortTokens && entry->tokens().size() >= kShortTokens) continue;
    dropped.push_back(entry);
    left -= entry->bytes();
  }
  if (left + bytes > limit_bytes_) return false;
  for (const auto entry : dropped) entries_.erase(entry);
  used_bytes_ = left;
  return true;
}

}  // namespace thimble
