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
  kInterrupted,  // the listener said so
};

/// Told of a generation as it happens, from the thread that runs it.
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

/// Appends `prompt` to `session` and samples on from it. The prompt may be empty where the session
/// has logits to go on from. Text goes to the listener as it is made,
/// never half a character, never a part of a stop string, never a reserved token. The last token
/// sampled is not appended to the session: nothing was to follow it. Ends cleanly when the listener
/// says stop: the result then holds what was made so far, and the session is poisoned where that
/// was in a sweep. `sink`, if set, receives the logits of every prompt position.
GenerationResult Generate(Session& session, std::span<const TokenId> prompt,
                          const GenerationOptions& options, GenerationListener& listener,
                          const Session::LogitsSink& sink = nullptr);

}  // namespace thimble
