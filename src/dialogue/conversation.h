#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "chat/reply_parser.h"
#include "engine/generation.h"
#include "engine/prefix_store.h"

namespace thimble {

/// Told of an answer while it is generated.
class ConversationListener : public ReplyListener {
 public:
  /// Before each layer; false abandons the step at once.
  virtual bool OnLayer(size_t layer) = 0;
  virtual bool Continue() = 0;
  /// Between two steps; false ends the answer and keeps what there is of it.
  virtual bool OnPause() = 0;
  /// While the prompt is read: `done` of its `total` tokens.
  virtual void OnProgress(size_t done, size_t total) = 0;
  /// A token of the answer was sampled, in the channel that it belongs to.
  virtual void OnToken(ReplyChannel channel) = 0;

  void OnToolCall(size_t, const std::string&) override {}
  void OnToolArguments(size_t, std::string_view) override {}
};

struct ConversationOptions {
  std::string system;        // empty: none
  std::string effort;        // low, high, max; empty: no thinking
  size_t max_tokens = 1024;  // of an answer
  SamplingOptions sampling;
};

/// What became of an answer, and what it cost.
struct AnswerReport {
  FinishReason reason = FinishReason::kStop;
  bool answered = false;     // false: interrupted before it began; all is as it was before
  size_t dropped_turns = 0;  // the oldest, dropped to make room
  size_t reused_tokens = 0;  // of the prompt, from the session or a snapshot
  size_t prompt_tokens = 0;  // all of it
  size_t answer_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

/// A conversation of one user with a model. Nothing is computed twice that a session or a snapshot
/// still holds: earlier answers stay the very tokens that were sampled. Where an answer is
/// interrupted before it begins, or fails with any exception, the conversation is as it was before,
/// with all its turns.
class Conversation {
 public:
  /// Borrows the engine, which must have been opened with `snapshot_bytes`.
  Conversation(Engine& engine, uint64_t snapshot_bytes, ConversationOptions options);

  /// Adds a message of the user and the answer to it. Error(kUsage) where it does not fit the
  /// context even alone. Where the context is full, the oldest turns are dropped whole.
  AnswerReport Say(const std::string& user, ConversationListener& listener);
  /// Adds a message of the user whose answer is still to come, by Continue or Regenerate. What has
  /// been computed of it is kept.
  void Ask(const std::string& user);
  /// Replaces the latest answer. Error(kUsage) where there is none.
  AnswerReport Regenerate(ConversationListener& listener);
  /// Continues the latest answer where it was cut, as if it had not been. Error(kUsage) where it is
  /// complete, or has no room left.
  AnswerReport Continue(ConversationListener& listener);
  /// Takes back the latest message and its answer. False where there is none.
  bool Undo();
  /// Forgets all turns.
  void Reset() { turns_.clear(); }

  void SetSystem(const std::string& system) { options_.system = system; }
  /// low, high, max; empty: no thinking.
  void SetEffort(const std::string& effort);
  const ConversationOptions& options() const { return options_; }

  /// To disk and back, as SessionFile.
  void Save(const std::filesystem::path& path);
  /// Error(kBadModel) also where the file is of a `run`; the conversation is then as before, but
  /// its state has to be computed anew.
  void Load(const std::filesystem::path& path);

  size_t num_turns() const { return turns_.size(); }
  /// Of the context. There may be no room left for the end of a message that was cut.
  size_t num_tokens() const { return std::min(Tokens().size(), capacity()); }
  size_t capacity() const { return session_.capacity(); }
  /// Of turn `i`: what the user said, and the answer without its reasoning.
  const std::string& user(size_t i) const { return turns_[i].user; }
  const std::string& answer(size_t i) const { return turns_[i].answer; }
  /// Whether the latest answer was cut, so that Continue can go on.
  bool is_cut() const { return !turns_.empty() && turns_.back().end_ids > 0; }
  uint64_t snapshot_bytes() const { return store_.used_bytes(); }

 private:
  struct Turn {
    std::string user;
    std::string answer;
    std::vector<TokenId> prompt_ids;  // its message, and the beginning of the answer
    std::vector<TokenId> answer_ids;  // as sampled, and the end of the message
    size_t end_ids = 0;  // of them, those that stand in for the end of an answer that was cut
  };
  class Reader;

  ChatRequest Head() const;
  std::vector<TokenId> HeadIds() const;
  std::vector<TokenId> Tokens() const;
  Turn NewTurn(const std::string& user) const;
  size_t MakeRoom();
  AnswerReport Attempt(std::vector<Turn> turns, ConversationListener& listener);
  AnswerReport Answer(ConversationListener& listener);
  void Close(Turn* turn, Reader& reader, FinishReason reason) const;
  bool ReadPrompt(const std::vector<TokenId>& tokens, Session::Observer& observer);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  const ChatMarkup markup_;
  ConversationOptions options_;
  std::string random_state_;
  std::vector<Turn> turns_;
  Session session_;
  PrefixStore store_;
};

}  // namespace thimble
