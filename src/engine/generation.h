#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"

namespace thimble {

struct GenerationOptions {
  size_t max_tokens = 256;
  SamplingOptions sampling = {};
  std::vector<std::string> stop_strings = {};
  // Where sampling continues (Sampler::SaveRandom); empty: from the seed.
  std::string random_state = {};
};

enum class FinishReason : uint8_t {
  kStop,         // a stop id or a stop string
  kLength,       // max_tokens
  kContext,      // the session is full
  kInterrupted,  // the listener said stop
};

/// Receives the progress of a generation, on the thread that runs it.
class GenerationListener : public Session::Observer {
 public:
  /// A token was sampled.
  virtual void OnToken(TokenId id) = 0;
  /// Text that may be shown: valid UTF-8, often a word.
  virtual void OnText(std::string_view text) = 0;
};

struct GenerationResult {
  std::vector<TokenId> ids;  // sampled, the stop id included
  FinishReason reason = FinishReason::kLength;
  double prefill_seconds = 0;  // until the first token could be sampled
  double decode_seconds = 0;   // after that
  std::string random_state;    // after the last token
};

/// Appends `prompt` to `session` and samples from there. The prompt may be empty if the session has
/// logits. The listener receives text as it is made: whole characters, no part of a stop string, no
/// reserved token. The last sampled token is not appended to the session, because nothing follows
/// it. If the listener says stop, the result holds what was made so far; the session is poisoned if
/// that happened during a sweep. `sink`, if set, receives the logits of every prompt position.
GenerationResult Generate(Session& session, std::span<const TokenId> prompt,
                          const GenerationOptions& options, GenerationListener& listener,
                          const Session::LogitsSink& sink = nullptr);

}  // namespace thimble
