#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "server/api.h"
#include "server/reply_reader.h"

namespace thimble::server {

/// One answer from its job to its client. Destroyed, it cancels the job. One thread at a time.
class AnswerRun {
 public:
  AnswerRun(Api api, const ServedModel& model, const ApiRequest& request, std::shared_ptr<Job> job);
  ~AnswerRun() { job_->Cancel(); }
  AnswerRun(const AnswerRun&) = delete;
  AnswerRun& operator=(const AnswerRun&) = delete;

  /// Waits at most `timeout` for something to happen. False once the answer has ended.
  bool Step(std::chrono::milliseconds timeout);
  bool ended() const { return ended_; }
  const std::string& error() const { return error_; }

  /// Streamed: what is to be sent since the last call.
  std::string Take();
  /// Whole, once ended without an error.
  std::string Whole() const;
  /// A sign of life that says where the job is.
  std::string KeepAlive();

 private:
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
