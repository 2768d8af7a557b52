#include "server/answer_run.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace thimble::server {

AnswerRun::AnswerRun(Api api, const ServedModel& model, const ApiRequest& request,
                     std::shared_ptr<Job> job)
    : request_(request),
      job_(std::move(job)),
      reader_(*model.tokenizer, {request.is_chat ? model.markup : std::nullopt,
                                 {request.thinking, request.tools},
                                 request.stops,
                                 request.logprobs}),
      answer_(NewApiAnswer(api, model, request)) {
  usage_.prompt_tokens = request.job.prompt.size();
}

bool AnswerRun::Step() {
  if (ended_) return false;
  // The client is owed an end, whatever happens.
  try {
    Read();
  } catch (const std::exception& error) {
    error_ = error.what();
    ended_ = true;
    job_->Cancel();
  }
  if (request_.hide_reasoning) {
    std::erase_if(pieces_, [](const ReplyPiece& piece) {
      return piece.kind == ReplyPiece::Kind::kReasoning;
    });
  }
  return !ended_;
}

void AnswerRun::Read() {
  latest_ = job_->Take();
  for (const SampledToken& token : latest_.tokens) {
    if (complete_) break;
    const auto& stop_ids = request_.stop_token_ids;
    complete_ =
        std::ranges::find(stop_ids, token.id) != stop_ids.end() || reader_.Feed(token, &pieces_);
  }
  usage_.cached_tokens = latest_.cached_tokens;
  usage_.completion_tokens = reader_.num_tokens();
  usage_.reasoning_tokens = reader_.reasoning_tokens();
  if (complete_) job_->Cancel();
  ended_ = complete_ || latest_.ended;
  if (!ended_) return;
  if (!complete_) error_ = latest_.error;
  reader_.Finish(&pieces_);
}

ReplyEnd AnswerRun::End() const {
  if (reader_.num_tool_calls() > 0) return ReplyEnd::kToolCalls;
  if (reader_.stopped()) return ReplyEnd::kStopString;
  if (complete_ || latest_.reason == FinishReason::kStop) return ReplyEnd::kStop;
  return ReplyEnd::kLength;
}

std::string AnswerRun::Take() {
  std::string text;
  if (!begun_) text += answer_->Begin();
  begun_ = true;
  text += answer_->Write(std::exchange(pieces_, {}));
  if (!ended_ || end_taken_) return text;
  end_taken_ = true;
  return text + (error_.empty() ? answer_->End(End(), usage_) : answer_->Fail(error_));
}

std::string AnswerRun::Whole() const { return answer_->Whole(pieces_, End(), usage_); }

std::string AnswerRun::KeepAlive() {
  switch (latest_.phase) {
    case JobPhase::kQueued:
      return answer_->KeepAlive("queued");
    case JobPhase::kPrompt:
      return answer_->KeepAlive("prefill " + std::to_string(latest_.prompt_done) + "/" +
                                std::to_string(usage_.prompt_tokens));
    case JobPhase::kAnswer:
      break;
  }
  return answer_->KeepAlive("answer " + std::to_string(usage_.completion_tokens));
}

}  // namespace thimble::server
