#include "engine/snapshot.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"

namespace thimble {

uint64_t Snapshot::Bytes(const ModelConfig& config, size_t num_tokens, LatentFormat latents) {
  return StateCache::PieceBytes(config, num_tokens, latents) + config.vocab_size * sizeof(float);
}

Snapshot Snapshot::Take(Session& session) {
  THIMBLE_CHECK(!session.poisoned());
  Snapshot snapshot;
  Engine& engine = session.engine();
  snapshot.tokens_ = session.tokens();
  snapshot.buffer_ = Buffer(engine.budget_, "snapshots",
                            Bytes(engine.config(), session.num_tokens(), session.latents()));
  std::byte* to = snapshot.buffer_.data();
  for (const std::span<const std::byte> piece : session.state_.Pieces(session.num_tokens())) {
    to = std::copy(piece.begin(), piece.end(), to);
  }
  snapshot.has_logits_ = session.has_logits();
  if (session.has_logits()) {
    std::memcpy(to, session.logits().data(), session.logits().size_bytes());
  }
  return snapshot;
}

void Snapshot::RestoreTo(Session& session) const {
  if (tokens_.size() > session.capacity()) {
    throw Error(ErrorCode::kUsage, "a snapshot of " + std::to_string(tokens_.size()) +
                                       " tokens does not fit a session of " +
                                       std::to_string(session.capacity()));
  }
  const std::byte* from = buffer_.data();
  for (const std::span<std::byte> piece : session.state_.Pieces(tokens_.size())) {
    std::copy(from, from + piece.size(), piece.begin());
    from += piece.size();
  }
  if (has_logits_) {
    std::memcpy(session.logits_data(), from, session.engine().config().vocab_size * sizeof(float));
  }
  session.Adopt(tokens_, has_logits_);
}

}  // namespace thimble
