#include "server/answer_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace thimble::server {
namespace {

// Of one answer, in queue and engine together: enough to keep the engine busy, and not so many that
// a long list of prompts fills the queue.
constexpr size_t kJobsAtOnce = 8;

}  // namespace

struct AnswerRun::Choice {
  Choice(JobRequest job_request, const Tokenizer& tokenizer, ReplyReader::Options options)
      : request(std::move(job_request)),
        prompt_tokens(request.prompt.size()),
        reader(tokenizer, std::move(options)) {}

  ReplyEnding Ending() const {
    // A call that was cut is no call to answer.
    const bool cut = !complete && latest.reason != FinishReason::kStop;
    if (cut) return {ReplyEnd::kLength, {}};
    if (reader.num_tool_calls() > 0) return {ReplyEnd::kToolCalls, {}};
    if (reader.stopped()) return {ReplyEnd::kStopString, reader.stop_string()};
    return {ReplyEnd::kStop, {}};
  }

  JobRequest request;  // until it is submitted
  size_t prompt_tokens;
  std::shared_ptr<Job> job;  // null: not submitted yet
  ReplyReader reader;
  std::vector<ReplyPiece> pieces;  // not taken yet
  Job::Update latest;
  bool complete = false;  // by a stop string or the end of the message
  bool ended = false;
  bool end_taken = false;
};

AnswerRun::AnswerRun(Api api, const ServedModel& model, const ApiRequest& request, Backend& backend)
    : choices_per_prompt_(request.num_choices),
      stop_token_ids_(request.stop_token_ids),
      hide_reasoning_(request.hide_reasoning),
      backend_(backend),
      answer_(NewApiAnswer(api, model, request)) {
  const ReplyReader::Options options = {request.is_chat ? model.markup : std::nullopt,
                                        {request.thinking, request.tools, request.tool_names},
                                        request.stops,
                                        request.logprobs};
  for (JobRequest& job : JobsOf(request)) {
    choices_.push_back(std::make_unique<Choice>(std::move(job), *model.tokenizer, options));
  }
  SubmitWaiting();
  if (!error_.empty()) throw ApiError(429, error_);
}

AnswerRun::~AnswerRun() {
  for (const auto& choice : choices_) {
    if (choice->job == nullptr) continue;
    choice->job->OnChange(nullptr);
    choice->job->Cancel();
  }
}

void AnswerRun::OnChange(const std::function<void()>& wake) {
  wake_ = wake;
  for (const auto& choice : choices_) {
    if (choice->job != nullptr) choice->job->OnChange(wake);
  }
}

void AnswerRun::SubmitWaiting() {
  size_t num_open = 0;
  for (const auto& choice : choices_) {
    if (choice->ended) continue;
    if (num_open == kJobsAtOnce) return;
    if (choice->job == nullptr) {
      // A copy: where the queue has no room, the request is needed again.
      auto job = std::make_shared<Job>(choice->request);
      if (wake_) job->OnChange(wake_);
      if (!backend_.Submit(job)) {
        if (num_open == 0) error_ = "too many requests wait already; try again later";
        return;
      }
      choice->job = std::move(job);
      choice->request = {};
    }
    ++num_open;
  }
}

bool AnswerRun::Step() {
  if (ended_) return false;
  // The client is owed an end, whatever happens.
  try {
    Read();
  } catch (const std::exception& error) {
    error_ = error.what();
  }
  ended_ = !error_.empty() ||
           std::ranges::all_of(choices_, [](const auto& choice) { return choice->ended; });
  return !ended_;
}

void AnswerRun::Read() {
  for (const auto& choice : choices_) {
    if (choice->job != nullptr && !choice->ended) StepChoice(*choice);
  }
  SubmitWaiting();
}

void AnswerRun::StepChoice(Choice& choice) {
  choice.latest = choice.job->Take();
  if (!choice.latest.prompt_tokens.empty()) {
    choice.pieces.push_back(
        {ReplyPiece::Kind::kPrompt, {}, 0, {}, std::move(choice.latest.prompt_tokens)});
  }
  for (const SampledToken& token : choice.latest.tokens) {
    if (choice.complete) break;
    choice.complete = std::ranges::find(stop_token_ids_, token.id) != stop_token_ids_.end() ||
                      choice.reader.Feed(token, &choice.pieces);
  }
  if (choice.complete) choice.job->Cancel();
  choice.ended = choice.complete || choice.latest.ended;
  if (choice.ended) {
    if (!choice.complete && !choice.latest.error.empty()) error_ = choice.latest.error;
    choice.reader.Finish(&choice.pieces);
  }
  if (!hide_reasoning_) return;
  std::erase_if(choice.pieces,
                [](const ReplyPiece& piece) { return piece.kind == ReplyPiece::Kind::kReasoning; });
}

Usage AnswerRun::TotalUsage() const {
  Usage usage;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = *choices_[i];
    usage.completion_tokens += choice.reader.num_tokens();
    usage.reasoning_tokens += choice.reader.reasoning_tokens();
    // A prompt counts once, however many answers it has.
    if (i % choices_per_prompt_ != 0) continue;
    usage.prompt_tokens += choice.prompt_tokens;
    usage.cached_tokens += choice.latest.cached_tokens;
  }
  return usage;
}

bool AnswerRun::IsQueued() const {
  return std::ranges::all_of(choices_, [](const auto& choice) {
    return choice->latest.phase == JobPhase::kQueued && choice->reader.num_tokens() == 0 &&
           !choice->ended;
  });
}

std::string AnswerRun::Take() {
  if (end_taken_) return {};
  const bool failed = ended_ && !error_.empty();
  std::string text;
  if (!begun_ && (answer_->BeginsInQueue() || !IsQueued())) {
    text += answer_->Begin(TotalUsage());
    begun_ = true;
  }
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = *choices_[i];
    text += answer_->Write(i, std::exchange(choice.pieces, {}));
    if (!choice.ended || choice.end_taken || failed) continue;
    choice.end_taken = true;
    text += answer_->EndChoice(i, choice.Ending());
  }
  if (!ended_) return text;
  end_taken_ = true;
  return text + (failed ? answer_->Fail(error_) : answer_->End(TotalUsage()));
}

std::string AnswerRun::Whole() const {
  std::vector<Reply> replies;
  for (const auto& choice : choices_) replies.push_back({choice->pieces, choice->Ending()});
  return answer_->Whole(replies, TotalUsage());
}

std::string AnswerRun::KeepAlive() {
  if (IsQueued()) return answer_->KeepAlive("queued");
  const Usage usage = TotalUsage();
  size_t prompt_done = 0;
  for (size_t i = 0; i < choices_.size(); i += choices_per_prompt_) {
    const Choice& choice = *choices_[i];
    prompt_done += choice.ended ? choice.prompt_tokens : choice.latest.prompt_done;
  }
  if (usage.completion_tokens == 0) {
    return answer_->KeepAlive(fmt::format("prefill {}/{}", prompt_done, usage.prompt_tokens));
  }
  return answer_->KeepAlive(fmt::format("answer {}", usage.completion_tokens));
}

}  // namespace thimble::server
