#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat_request.h"
#include "chat/prompt.h"
#include "server/job.h"
#include "server/reply_reader.h"
#include "text/tokenizer.h"

namespace thimble::server {

/// A request that is refused, to be said in the shape of the client's API.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, const std::string& message, std::string code = {})
      : std::runtime_error(message), status_(status), code_(std::move(code)) {}
  int status() const noexcept { return status_; }
  /// For programs, e.g. context_length_exceeded; empty: none.
  const std::string& code() const noexcept { return code_; }

 private:
  int status_;
  std::string code_;
};

/// What the server serves, and how it fills in what a request leaves out.
struct ServedModel {
  const Tokenizer* tokenizer = nullptr;
  std::shared_ptr<LazyTokenTrie> trie;  // of the tokenizer, for bound answers; null: one for each
  std::optional<ChatMarkup> markup;     // absent: the model only continues text
  std::string name;
  size_t context = 0;
  int64_t created = 0;         // seconds since 1970, of the list of models
  std::string fingerprint;     // that tells its weights from others'; empty: none
  std::string effort = "low";  // where a request names none; empty: no thinking
  std::vector<TokenId> stop_ids;
  SamplingOptions sampling;
};

/// Most answers that one request may ask for, and most prompts of a completion.
inline constexpr size_t kMaxChoices = 16;
inline constexpr size_t kMaxPrompts = 512;

/// A request, understood.
struct ApiRequest {
  JobRequest job;  // of the first answer
  // Of a completion: further prompts, each with the room for its answer.
  struct Prompt {
    std::vector<TokenId> ids;
    size_t max_tokens = 0;
  };
  std::vector<Prompt> more_prompts;
  size_t num_choices = 1;  // answers to each prompt, which differ in their seed
  std::vector<std::string> stops;
  std::vector<TokenId> stop_token_ids;  // of the request itself: they end the answer, unseen
  bool stream = false;
  bool include_usage = false;
  bool is_chat = true;  // the answer is to be parsed
  bool thinking = false;
  bool tools = false;
  std::vector<std::string> tool_names;  // that were offered; calls of others are dropped
  bool logprobs = false;
  bool hide_reasoning = false;       // thoughts are not sent
  bool legacy_functions = false;     // calls go out as OpenAI's older function_call
  bool encrypted_reasoning = false;  // of a response: thoughts also as the content that comes back
  bool echo = false;                 // of a completion: begin with the prompt
  JsonValue echoed;                  // of a response: what is said back of the request, an object
  // What was replaced or left out of the request, one sentence each: the header X-Thimble-Note.
  std::vector<std::string> notes;
};

/// The jobs of a request, in the order of its choices: all answers to one prompt, then those to the
/// next. ApiError 400 where they would be more than kMaxPrompts.
std::vector<JobRequest> JobsOf(const ApiRequest& request);

struct Usage {
  size_t prompt_tokens = 0;
  size_t cached_tokens = 0;
  size_t completion_tokens = 0;
  size_t reasoning_tokens = 0;
};

enum class ReplyEnd : uint8_t { kStop, kStopString, kLength, kToolCalls };

/// How one choice ended.
struct ReplyEnding {
  ReplyEnd end = ReplyEnd::kStop;
  std::string stop;  // the stop string that ended it
};

/// One choice, whole.
struct Reply {
  std::vector<ReplyPiece> pieces;
  ReplyEnding ending;
};

/// One of the client APIs: writes an answer, whole or streamed. One object serves one answer; one
/// thread at a time.
class ApiAnswer {
 public:
  virtual ~ApiAnswer() = default;
  /// Whether a stream begins while the request waits, before Usage::cached_tokens is known.
  virtual bool BeginsInQueue() const { return true; }
  // Streamed: each gives the bytes to send, maybe none. Choices may come in any order, each ends
  // once.
  virtual std::string Begin(const Usage& usage) = 0;
  virtual std::string Write(size_t choice, const std::vector<ReplyPiece>& pieces) = 0;
  virtual std::string EndChoice(size_t choice, const ReplyEnding& ending) = 0;
  virtual std::string End(const Usage& usage) = 0;
  /// In place of what is left. May come before Begin.
  virtual std::string Fail(const std::string& message) = 0;
  /// May come before Begin.
  virtual std::string KeepAlive(const std::string& note) = 0;
  // At once.
  virtual std::string Whole(const std::vector<Reply>& replies, const Usage& usage) = 0;
};

enum class Api : uint8_t { kChat, kCompletions, kMessages, kResponses };

/// Reads the body of a request; ApiError where it is refused.
ApiRequest ReadApiRequest(Api api, const std::string& body, const ServedModel& model);
/// Only the prompt, for count_tokens.
size_t CountTokens(Api api, const std::string& body, const ServedModel& model);
std::unique_ptr<ApiAnswer> NewApiAnswer(Api api, const ServedModel& model,
                                        const ApiRequest& request);
/// Begins the encrypted_content of a thought that this server sent: the thought itself follows, in
/// clear. Other servers' mean nothing here.
inline constexpr std::string_view kThoughtMark = "thimble:";

/// The value of X-Thimble-Note: the notes in one line of printable ASCII, at most 1,000 characters;
/// empty where there are none.
std::string NoteHeader(const std::vector<std::string>& notes);

/// An error as this API says it.
std::string WriteApiError(Api api, const ApiError& error);

// One pair for each API; the functions above choose.
ApiRequest ReadChatApi(const JsonValue& body, const ServedModel& model);
ApiRequest ReadCompletionsApi(const JsonValue& body, const ServedModel& model);
ApiRequest ReadMessagesApi(const JsonValue& body, const ServedModel& model, bool count_only);
ApiRequest ReadResponsesApi(const JsonValue& body, const ServedModel& model);
std::unique_ptr<ApiAnswer> NewChatAnswer(const ServedModel& model, const ApiRequest& request);
std::unique_ptr<ApiAnswer> NewCompletionsAnswer(const ServedModel& model,
                                                const ApiRequest& request);
std::unique_ptr<ApiAnswer> NewMessagesAnswer(const ServedModel& model, const ApiRequest& request);
std::unique_ptr<ApiAnswer> NewResponsesAnswer(const ServedModel& model, const ApiRequest& request);

/// "chatcmpl-" and 24 random digits.
std::string NewId(const std::string& prefix);
/// Seconds since 1970.
int64_t UnixTime();

}  // namespace thimble::server
