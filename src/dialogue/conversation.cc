#include "dialogue/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "engine/session_file.h"

namespace thimble {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

void AppendTo(std::vector<TokenId>* ids, const std::vector<TokenId>& more) {
  ids->insert(ids->end(), more.begin(), more.end());
}

}  // namespace

// Passes the tokens of an answer to the parser, and the parser's texts to the listener.
class Conversation::Reader : public GenerationListener, public ReplyListener {
 public:
  Reader(const Conversation& conversation, ConversationListener& listener)
      : listener_(listener),
        parser_(NewReplyParser(conversation.markup_, conversation.tokenizer_,
                               {!conversation.options_.effort.empty(), false}, *this)) {}

  bool OnLayer(size_t layer) override { return listener_.OnLayer(layer); }
  bool Continue() override { return listener_.Continue(); }
  void OnProgress(size_t done, size_t total) override { listener_.OnProgress(done, total); }
  bool OnPause() override { return !parser_->done() && listener_.OnPause(); }
  void OnText(std::string_view) override {}
  void OnToken(TokenId id) override {
    channel_ = parser_->channel();
    parser_->Feed(id);
    listener_.OnToken(channel_);
  }
  void OnReasoning(std::string_view text) override {
    if (!replays_) listener_.OnReasoning(text);
  }
  void OnContent(std::string_view text) override {
    content += text;
    if (!replays_) listener_.OnContent(text);
  }
  void OnToolCall(size_t, const std::string&) override {}
  void OnToolArguments(size_t, std::string_view) override {}

  // Brings the parser to the end of what was sampled before, without telling the listener.
  void Replay(const std::vector<TokenId>& ids) {
    replays_ = true;
    for (const TokenId id : ids) parser_->Feed(id);
    replays_ = false;
  }

  bool done() const { return parser_->done(); }
  // Where the answer was before its latest token.
  ReplyChannel last_channel() const { return channel_; }
  ReplyChannel channel() const { return parser_->channel(); }
  void Finish() { parser_->Finish(); }

  std::string content;

 private:
  ConversationListener& listener_;
  std::unique_ptr<ReplyParser> parser_;
  ReplyChannel channel_ = ReplyChannel::kNone;
  bool replays_ = false;
};

Conversation::Conversation(Engine& engine, uint64_t snapshot_bytes, ConversationOptions options)
    : engine_(engine),
      tokenizer_(engine.model().RequireTokenizer()),
      markup_(FindChatMarkup(tokenizer_)),
      options_(std::move(options)),
      session_(engine),
      store_(snapshot_bytes) {
  SetEffort(options_.effort);
}

void Conversation::SetEffort(const std::string& effort) {
  if (!effort.empty()) CheckEffort(effort);
  // Kimi-Linear has no channel to think in.
  options_.effort = markup_ == ChatMarkup::kKimiK3 ? effort : "";
}

ChatRequest Conversation::Head() const {
  ChatRequest request;
  request.thinking = !options_.effort.empty();
  request.effort = options_.effort;
  request.add_generation_prompt = false;
  if (!options_.system.empty()) {
    request.messages.emplace_back();
    request.messages.back().role = ChatRole::kSystem;
    request.messages.back().content = {{options_.system, std::nullopt}};
  }
  return request;
}

std::vector<TokenId> Conversation::HeadIds() const { return EncodeChat(tokenizer_, Head()).ids; }

std::vector<TokenId> Conversation::Tokens() const {
  std::vector<TokenId> tokens = HeadIds();
  for (const Turn& turn : turns_) {
    AppendTo(&tokens, turn.prompt_ids);
    AppendTo(&tokens, turn.answer_ids);
  }
  return tokens;
}

Conversation::Turn Conversation::NewTurn(const std::string& user) const {
  Turn turn;
  turn.user = user;
  turn.prompt_ids = EncodeNextTurn(tokenizer_, Head(), user).ids;
  const size_t alone = HeadIds().size() + turn.prompt_ids.size();
  if (alone < capacity()) return turn;
  throw Error(
      ErrorCode::kUsage,
      fmt::format("the message is too long: with what precedes it, it takes {} of {} tokens; "
                  "shorten it, or raise -c",
                  alone, capacity()));
}

AnswerReport Conversation::Say(const std::string& user, ConversationListener& listener) {
  std::vector<Turn> turns = turns_;
  turns.push_back(NewTurn(user));
  // What was sampled last: the user may want to go back to before this message.
  store_.Keep(session_);
  return Attempt(std::move(turns), listener);
}

void Conversation::Ask(const std::string& user) {
  Turn turn = NewTurn(user);
  const ReplyChannel channel =
      options_.effort.empty() ? ReplyChannel::kContent : ReplyChannel::kReasoning;
  turn.answer_ids = EndOfReply(tokenizer_, channel, false);
  turn.end_ids = turn.answer_ids.size();
  turns_.push_back(std::move(turn));
}

AnswerReport Conversation::Regenerate(ConversationListener& listener) {
  if (turns_.empty()) throw Error(ErrorCode::kUsage, "there is no message to answer yet");
  std::vector<Turn> turns = turns_;
  turns.back().answer.clear();
  turns.back().answer_ids.clear();
  turns.back().end_ids = 0;
  return Attempt(std::move(turns), listener);
}

AnswerReport Conversation::Continue(ConversationListener& listener) {
  if (!is_cut()) {
    throw Error(ErrorCode::kUsage, turns_.empty() ? "there is no answer to continue yet"
                                                  : "the last answer is complete");
  }
  std::vector<Turn> turns = turns_;
  Turn& turn = turns.back();
  turn.answer_ids.resize(turn.answer_ids.size() - turn.end_ids);
  turn.end_ids = 0;
  const size_t alone = HeadIds().size() + turn.prompt_ids.size() + turn.answer_ids.size();
  if (alone >= capacity()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the answer fills the context of {} tokens: raise -c to continue it",
                            capacity()));
  }
  return Attempt(std::move(turns), listener);
}

bool Conversation::Undo() {
  if (turns_.empty()) return false;
  turns_.pop_back();
  return true;
}

// Drops the oldest turns until the answer has room. Returns how many.
size_t Conversation::MakeRoom() {
  const size_t wanted = std::min(options_.max_tokens, capacity() / 4);
  size_t dropped = 0;
  for (; turns_.size() > 1 && Tokens().size() + wanted > capacity(); ++dropped) {
    turns_.erase(turns_.begin());
  }
  return dropped;
}

// Makes `turns` the conversation and answers, or continues, the last of them. Without an answer all
// is as it was, the turns that were dropped for its sake included.
AnswerReport Conversation::Attempt(std::vector<Turn> turns, ConversationListener& listener) {
  std::swap(turns_, turns);
  try {
    AnswerReport report = Answer(listener);
    if (report.answered) return report;
    turns_ = std::move(turns);
    report.dropped_turns = 0;
    return report;
  } catch (...) {
    turns_ = std::move(turns);
    throw;
  }
}

// Brings the session to the end of `tokens`; false where the listener interrupted that.
bool Conversation::ReadPrompt(const std::vector<TokenId>& tokens, Session::Observer& observer) {
  const auto rest = std::span(tokens).subspan(session_.num_tokens());
  try {
    if (!rest.empty()) session_.Append(rest, &observer);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInterrupted) throw;
    store_.Keep(session_);  // as far as it has come
    return false;
  }
  store_.Keep(session_);
  return true;
}

AnswerReport Conversation::Answer(ConversationListener& listener) {
  AnswerReport report;
  report.dropped_turns = MakeRoom();
  Turn& turn = turns_.back();
  const std::vector<TokenId> tokens = Tokens();
  report.prompt_tokens = tokens.size();
  report.reused_tokens = store_.Resume(session_, tokens);
  Reader reader(*this, listener);
  reader.Replay(turn.answer_ids);
  const auto start = Clock::now();
  if (!ReadPrompt(tokens, reader)) return report;
  report.prefill_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  GenerationOptions generation;
  generation.max_tokens = options_.max_tokens;
  generation.sampling = options_.sampling;
  generation.random_state = random_state_;
  const GenerationResult result = Generate(session_, {}, generation, reader);
  random_state_ = result.random_state;
  report.reason = reader.done() ? FinishReason::kStop : result.reason;
  report.answered = true;
  report.answer_tokens = result.ids.size();
  report.decode_seconds = result.decode_seconds;
  AppendTo(&turn.answer_ids, result.ids);
  Close(&turn, reader, report.reason);
  return report;
}

// Ends the answer's message, so that the conversation can go on after it.
void Conversation::Close(Turn* turn, Reader& reader, FinishReason reason) const {
  std::vector<TokenId>& ids = turn->answer_ids;
  const auto eos = tokenizer_.FindSpecial("[EOS]");
  const bool by_eos = !ids.empty() && eos && ids.back() == *eos;
  if (by_eos) ids.pop_back();
  const ReplyChannel channel = by_eos ? reader.last_channel() : reader.channel();
  const std::vector<TokenId> end = EndOfReply(tokenizer_, channel, !by_eos && reader.done());
  const bool has_end = !ids.empty() && ids.back() == end.back();
  if (!has_end) {
    AppendTo(&ids, end);
    if (reason != FinishReason::kStop) turn->end_ids = end.size();
  }
  // What a cut answer holds back, half a character or half a header, comes when it is continued.
  if (reason == FinishReason::kStop) reader.Finish();
  turn->answer = reader.content;
}

void Conversation::Save(const std::filesystem::path& path) {
  const std::vector<TokenId> tokens = Tokens();
  store_.Resume(session_, tokens);
  SessionNotes notes;
  notes.pending.assign(tokens.begin() + static_cast<ptrdiff_t>(session_.num_tokens()),
                       tokens.end());
  notes.random_state = random_state_;
  Json json = {{"system", options_.system}, {"effort", options_.effort}};
  json["turns"] = Json::array();
  for (const Turn& turn : turns_) {
    json["turns"].push_back({{"user", turn.user},
                             {"answer", turn.answer},
                             {"prompt_tokens", turn.prompt_ids.size()},
                             {"answer_tokens", turn.answer_ids.size()},
                             {"cut_tokens", turn.end_ids}});
  }
  notes.text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  SessionFile::Save(path, session_, notes);
}

void Conversation::Load(const std::filesystem::path& path) {
  const SessionNotes notes = SessionFile::Load(path, session_);
  std::vector<TokenId> tokens = session_.tokens();
  AppendTo(&tokens, notes.pending);
  ConversationOptions options = options_;
  std::vector<Turn> turns;
  try {
    const Json json = Json::parse(notes.text);
    options.system = json.at("system");
    options.effort = json.at("effort");
    // The turns are the end of the tokens.
    size_t place = tokens.size();
    for (const Json& turn : json.at("turns")) {
      place -= turn.at("prompt_tokens").get<size_t>() + turn.at("answer_tokens").get<size_t>();
    }
    if (place > tokens.size()) throw std::out_of_range("turns");
    const auto take = [&](size_t count) {
      if (count > tokens.size() - place) throw std::out_of_range("turns");
      const auto begin = tokens.begin() + static_cast<ptrdiff_t>(place);
      place += count;
      return std::vector<TokenId>(begin, begin + static_cast<ptrdiff_t>(count));
    };
    for (const Json& turn : json.at("turns")) {
      turns.push_back({turn.at("user"), turn.at("answer"), {}, {}});
      turns.back().prompt_ids = take(turn.at("prompt_tokens"));
      turns.back().answer_ids = take(turn.at("answer_tokens"));
      turns.back().end_ids = turn.value("cut_tokens", size_t{0});
      if (turns.back().end_ids > turns.back().answer_ids.size()) throw std::out_of_range("turns");
    }
  } catch (const std::exception&) {
    throw Error(
        ErrorCode::kBadModel,
        fmt::format("the session in {} holds no conversation; continue it with `thimble run "
                    "--session`",
                    path.string()));
  }
  options_ = options;
  turns_ = std::move(turns);
  random_state_ = notes.random_state;
}

}  // namespace thimble
