#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "server/answer_run.h"
#include "server/http_message.h"

namespace thimble::server {

/// An answer as a response, streamed or whole. Counts itself while it lives.
class LiveAnswer : public LiveReply {
 public:
  LiveAnswer(Api api, const ServedModel& model, const ApiRequest& request, Backend& backend,
             std::atomic<int>& count);
  ~LiveAnswer() override;

  bool streamed() const override { return streamed_; }
  void OnChange(std::function<void()> wake) override { run_.OnChange(wake); }
  std::string Take(bool idle) override;
  bool ended() const override { return run_.ended(); }
  HttpResponse Whole() override;

 private:
  const Api api_;
  const bool streamed_;
  std::atomic<int>& count_;
  AnswerRun run_;
};

/// An error in the shape of an API.
HttpResponse ErrorResponse(Api api, const ApiError& error);

}  // namespace thimble::server
