#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api.h"
#include "server/reply_reader.h"

namespace thimble::server {

/// One answer on its way from its job to its client. Its destruction cancels the job. Used by one
/// thread at a time.
class AnswerRun {
 public:
  AnswerRun(Api api, const ServedModel& model, const ApiRequest& request, std::shared_ptr<Job> job);
  ~AnswerRun() {
    job_->OnChange(nullptr);
    job_->Cancel();
  }
  AnswerRun(const AnswerRun&) = delete;
  AnswerRun& operator=(const AnswerRun&) = delete;

  /// Takes what the job has made since the last call. False once the answer has ended.
  bool Step();
  /// See Job::OnChange.
  void OnChange(std::function<void()> wake) { job_->OnChange(std::move(wake)); }
  bool ended() const { return ended_; }
  const std::string& error() const { return error_; }

  /// Streamed: what is to be sent since the last call.
  std::string Take();
  /// Whole, once ended without an error.
  std::string Whole() const;
  /// A sign of life that says where the job is.
  std::string KeepAlive();

 private:
  void Read();
  ReplyEnd End() const;

  const ApiRequest request_;
  std::shared_ptr<Job> job_;
  ReplyReader reader_;
  std::unique_ptr<ApiAnswer> answer_;
  std::vector<ReplyPiece> pieces_;  // not taken yet
  Job::Update latest_;
  Usage usage_;
  bool begun_ = false;
  bool complete_ = false;  // by a stop string or the end of the message
  bool ended_ = false;
  bool end_taken_ = false;
  std::string error_;
};

}  // namespace thimble::server
