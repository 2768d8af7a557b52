#include "server/job.h"

namespace thimble::server {

void Job::SetProgress(JobPhase phase, size_t prompt_done) {
  const std::lock_guard lock(mutex_);
  update_.phase = phase;
  update_.prompt_done = prompt_done;
}

void Job::SetCached(size_t tokens) {
  const std::lock_guard lock(mutex_);
  update_.cached_tokens = tokens;
}

void Job::Put(SampledToken token) {
  const std::lock_guard lock(mutex_);
  update_.tokens.push_back(std::move(token));
  changed_.notify_all();
}

void Job::End(FinishReason reason) {
  const std::lock_guard lock(mutex_);
  if (update_.ended) return;
  update_.ended = true;
  update_.reason = reason;
  changed_.notify_all();
}

void Job::Fail(const std::string& error) {
  const std::lock_guard lock(mutex_);
  if (update_.ended) return;
  update_.ended = true;
  update_.error = error;
  changed_.notify_all();
}

Job::Update Job::Wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return update_.ended || !update_.tokens.empty(); });
  Update update = update_;
  update_.tokens.clear();
  return update;
}

}  // namespace thimble::server
