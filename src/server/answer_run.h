#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/api.h"
#include "server/reply_reader.h"

namespace thimble::server {

/// One answer, of one or several choices, on its way from its jobs to its client. Its destruction
/// cancels the jobs. Used by one thread at a time.
class AnswerRun {
 public:
  /// Submits the first jobs; Step submits the others as those end. ApiError 429 where the queue is
  /// full.
  AnswerRun(Api api, const ServedModel& model, const ApiRequest& request, Backend& backend);
  ~AnswerRun();
  AnswerRun(const AnswerRun&) = delete;
  AnswerRun& operator=(const AnswerRun&) = delete;

  /// Takes what the jobs have made since the last call. False once the answer has ended.
  bool Step();
  /// See Job::OnChange.
  void OnChange(const std::function<void()>& wake);
  bool ended() const { return ended_; }
  const std::string& error() const { return error_; }

  /// Streamed: what is to be sent since the last call.
  std::string Take();
  /// Whole, once ended without an error.
  std::string Whole() const;
  /// A sign of life that says where the answer is.
  std::string KeepAlive();

 private:
  struct Choice;

  void Read();
  void SubmitWaiting();
  void StepChoice(Choice& choice);
  Usage TotalUsage() const;
  bool IsQueued() const;

  const size_t choices_per_prompt_;
  const std::vector<TokenId> stop_token_ids_;
  const bool hide_reasoning_;
  Backend& backend_;
  std::function<void()> wake_;
  std::vector<std::unique_ptr<Choice>> choices_;
  std::unique_ptr<ApiAnswer> answer_;
  bool begun_ = false;
  bool ended_ = false;
  bool end_taken_ = false;
  std::string error_;
};

}  // namespace thimble::server
