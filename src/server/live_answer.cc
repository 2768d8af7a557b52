#include "server/live_answer.h"

#include <utility>

namespace thimble::server {

HttpResponse ErrorResponse(Api api, const ApiError& error) {
  HttpResponse response;
  response.status = error.status();
  response.body = WriteApiError(api, error);
  if (error.status() == 429 || error.status() == 503) {
    response.headers.push_back({"Retry-After", "5"});
  }
  return response;
}

LiveAnswer::LiveAnswer(Api api, const ServedModel& model, const ApiRequest& request,
                       Backend& backend, std::atomic<int>& count)
    : api_(api), streamed_(request.stream), count_(count), run_(api, model, request, backend) {
  ++count_;
}

LiveAnswer::~LiveAnswer() { --count_; }

std::string LiveAnswer::Take(bool idle) {
  run_.Step();
  if (!streamed_) return {};
  std::string text = run_.Take();
  if (text.empty() && idle) text = run_.KeepAlive();
  return text;
}

HttpResponse LiveAnswer::Whole() {
  if (!run_.error().empty()) return ErrorResponse(api_, ApiError(500, run_.error()));
  HttpResponse response;
  response.body = run_.Whole();
  return response;
}

}  // namespace thimble::server
