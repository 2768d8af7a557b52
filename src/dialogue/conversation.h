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

/// Told of an answer as it is made.
class ConversationListener : public ReplyListener {
 public:
  /// Before each layer; false breaks the step off at once.
  virtual bool OnLayer(size_t layer) = 0;
  virtual bool Continue() = 0;
  /// Between two steps; false ends the answer, and keeps what was made.
  virtual bool OnPause() = 0;
  /// While the prompt is read, of whose `total` tokens so many are done.
  virtual void OnProgress(size_t done, size_t total) = 0;
  /// A token of the answer was made, in the channel that it belongs to.
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

/// What an answer took.
struct AnswerReport {
  FinishReason reason = FinishReason::kStop;
  bool answered = false;     // false: interrupted before it began; all is as it was before
  size_t dropped_turns = 0;  // the oldest, to make room
  size_t reused_tokens = 0;  // of the prompt, from the session or a snapshot
  size_t prompt_tokens = 0;  // all of it
  size_t answer_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

/// A conversation of one user with a model. Nothing is computed twice that a session or a snapshot
/// still knows: earlier answers stay the very tokens that were sampled.
class Conversation {
 public:
  /// Borrows the engine, which must have been opened with `snapshot_bytes`.
  Conversation(Engine& engine, uint64_t snapshot_bytes, ConversationOptions options);

  /// Adds what the user says, and the answer to it. Error(kUsage) where it does not fit the context
  /// even alone. Oldest turns are dropped whole where the context is full.
  AnswerReport Say(const std::string& user, ConversationListener& listener);
  /// Answers the latest message anew. Error(kUsage) where there is none. Interrupted before the new
  /// answer began, the old one stays.
  AnswerReport Regenerate(ConversationListener& listener);
  /// Takes back the latest message and its answer. False where there is none.
  bool Undo();
  /// Forgets all turns.
  void Reset() { turns_.clear(); }

  void SetSystem(const std::string& system) { options_.system = system; }
  /// low, high, max; empty: no thinking.
  void SetEffort(const std::string& effort);
  const ConversationOptions& options() const { return options_; }

  /// To disk and back, as SessionFile. Computes what an interruption has lost of the state first.
  void Save(const std::filesystem::path& path);
  /// Error(kBadModel) also where the file is of a `run`; the conversation is then as before, but
  /// its state has to be computed anew.
  void Load(const std::filesystem::path& path);

  size_t num_turns() const { return turns_.size(); }
  /// Of the context. The end of a message that was cut may have no room any more.
  size_t num_tokens() const { return std::min(Tokens().size(), capacity()); }
  size_t capacity() const { return session_.capacity(); }
  /// Of turn `i`: what the user said, and the answer without its reasoning.
  const std::string& user(size_t i) const { return turns_[i].user; }
  const std::string& answer(size_t i) const { return turns_[i].answer; }
  uint64_t snapshot_bytes() const { return store_.used_bytes(); }

 private:
  struct Turn {
    std::string user;
    std::string answer;
    std::vector<TokenId> prompt_ids;  // its message, and the beginning of the answer
    std::vector<TokenId> answer_ids;  // as sampled, and the end of the message
  };
  class Reader;

  ChatRequest Head() const;
  std::vector<TokenId> HeadIds() const;
  std::vector<TokenId> Tokens() const;
  size_t MakeRoom();
  AnswerReport Answer(ConversationListener& listener);
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
