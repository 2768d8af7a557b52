#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/token_id.h"
#include "engine/engine.h"

namespace thimble {

/// What belongs to a session beside its state.
struct SessionNotes {
  std::vector<TokenId> pending;  // tokens that follow, but have not been computed yet
  std::string random_state;      // of the sampler (Sampler::SaveRandom); empty: none
  std::string text;              // anything that the program wants back
};

/// Sessions on disk: a session that is loaded goes on as if it had never stopped, bit for bit.
/// docs/SESSIONS.md describes the file.
class SessionFile {
 public:
  /// Writes `session`, which must not be poisoned, as OutputFile does: `path` is there as a whole,
  /// or as it was. Error(kUsage) where `path` is neither a regular file nor free, Error(kRuntime)
  /// where the system fails.
  static void Save(const std::filesystem::path& path, Session& session, const SessionNotes& notes);

  /// Whether there is something to load in `path`: a file, and not an empty one, as mktemp makes.
  static bool Exists(const std::filesystem::path& path);

  /// Makes `session` what was saved; it may have another capacity. Error(kBadModel) with the reason
  /// where the file is no session, is damaged or of another format, or was made with another model;
  /// Error(kUsage) where the session has no room. The session is empty after an error.
  static SessionNotes Load(const std::filesystem::path& path, Session& session);

  /// Tokens that a session needs room for to load `path`, those pending included. Errors as Load,
  /// as far as the file's head tells.
  static size_t NumTokens(const std::filesystem::path& path);
};

}  // namespace thimble
