#include "engine/generation.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "text/stop_matcher.h"
#include "text/utf8_stream.h"

namespace thimble {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Turns ids into the text that may be shown. Without a tokenizer there is none.
class TextStream {
 public:
  TextStream(const Tokenizer* tokenizer, const std::vector<std::string>& stops)
      : tokenizer_(tokenizer), matcher_(stops) {}

  // Appends to *out what `id` completes; true where it completes a stop string.
  bool Feed(TokenId id, std::string* out) {
    if (tokenizer_ == nullptr) return false;
    std::string text;
    if (tokenizer_->IsReserved(id)) {
      utf8_.Flush(&text);
    } else {
      utf8_.Feed(tokenizer_->TokenBytes(id), &text);
    }
    return matcher_.Feed(text, out);
  }

  void Flush(std::string* out) {
    std::string text;
    utf8_.Flush(&text);
    if (!matcher_.Feed(text, out)) matcher_.Flush(out);
  }

 private:
  const Tokenizer* tokenizer_;
  Utf8Stream utf8_;
  StopMatcher matcher_;
};

class Generator {
 public:
  Generator(Session& session, const GenerationOptions& options, GenerationListener& listener)
      : session_(session),
        options_(options),
        listener_(listener),
        stop_ids_(session.engine().model().StopIds()),
        stream_(session.engine().model().tokenizer ? &*session.engine().model().tokenizer : nullptr,
                options.stop_strings),
        sampler_(session.engine().NewSampler(options.sampling)) {
    if (!options.random_state.empty()) sampler_.RestoreRandom(options.random_state);
  }

  GenerationResult Run(std::span<const TokenId> prompt, const Session::LogitsSink& sink) {
    history_ = session_.tokens();
    history_.insert(history_.end(), prompt.begin(), prompt.end());
    const auto start = Clock::now();
    bool going = prompt.empty() || Append(prompt, &listener_, sink);
    result_.prefill_seconds = SecondsSince(start);
    const auto decode_start = Clock::now();
    while (going) going = Step();
    result_.decode_seconds = SecondsSince(decode_start);
    result_.random_state = sampler_.SaveRandom();
    return std::move(result_);
  }

 private:
  // The observer of single tokens: it may stop them, but their progress is the text itself.
  struct Quiet : Session::Observer {
    explicit Quiet(GenerationListener& to) : listener(to) {}
    bool OnLayer(size_t layer) override { return listener.OnLayer(layer); }
    bool Continue() override { return listener.Continue(); }
    void OnProgress(size_t, size_t) override {}
    GenerationListener& listener;
  };

  bool End(FinishReason reason) {
    result_.reason = reason;
    return false;
  }

  bool Append(std::span<const TokenId> tokens, Session::Observer* observer,
              const Session::LogitsSink& sink) {
    try {
      session_.Append(tokens, observer, sink);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInterrupted) throw;
      return Finish(FinishReason::kInterrupted);
    }
    return true;
  }

  // Samples one token, shows it, and advances the session by it unless it was the last.
  bool Step() {
    if (result_.ids.size() == options_.max_tokens) return Finish(FinishReason::kLength);
    const TokenId id =
        sampler_.Sample(session_.logits(), history_, history_.size() - result_.ids.size());
    result_.ids.push_back(id);
    history_.push_back(id);
    listener_.OnToken(id);
    if (std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end()) {
      return Finish(FinishReason::kStop);
    }
    std::string text;
    const bool stopped = stream_.Feed(id, &text);
    Show(text);
    if (stopped) return End(FinishReason::kStop);
    if (result_.ids.size() == options_.max_tokens) return Finish(FinishReason::kLength);
    if (session_.num_tokens() == session_.capacity()) return Finish(FinishReason::kContext);
    if (!listener_.OnPause()) return Finish(FinishReason::kInterrupted);
    Quiet quiet(listener_);
    return Append({&id, 1}, &quiet, nullptr);
  }

  // Shows what was held back.
  bool Finish(FinishReason reason) {
    std::string text;
    stream_.Flush(&text);
    Show(text);
    return End(reason);
  }

  void Show(const std::string& text) {
    if (!text.empty()) listener_.OnText(text);
  }

  Session& session_;
  const GenerationOptions& options_;
  GenerationListener& listener_;
  const std::vector<TokenId> stop_ids_;
  TextStream stream_;
  Sampler sampler_;
  std::vector<TokenId> history_;
  GenerationResult result_;
};

}  // namespace

GenerationResult Generate(Session& session, std::span<const TokenId> prompt,
                          const GenerationOptions& options, GenerationListener& listener,
                          const Session::LogitsSink& sink) {
  if (prompt.empty() && !session.has_logits()) {
    throw Error(ErrorCode::kUsage, "the prompt is empty, expected at least one token");
  }
  return Generator(session, options, listener).Run(prompt, sink);
}

}  // namespace thimble
