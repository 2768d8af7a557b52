#include "server/job.h"

#include <new>
#include <utility>

namespace thimble::server {

void Job::SetProgress(JobPhase phase, size_t prompt_done) {
  const std::lock_guard lock(mutex_);
  const bool begins = phase != update_.phase;
  update_.phase = phase;
  update_.prompt_done = prompt_done;
  if (begins) Wake();
}

void Job::SetCached(size_t tokens) {
  const std::lock_guard lock(mutex_);
  update_.cached_tokens = tokens;
}

void Job::Put(SampledToken token) {
  const std::lock_guard lock(mutex_);
  update_.tokens.push_back(std::move(token));
  Wake();
}

void Job::PutPrompt(std::vector<SampledToken> tokens) {
  const std::lock_guard lock(mutex_);
  for (SampledToken& token : tokens) update_.prompt_tokens.push_back(std::move(token));
  Wake();
}

void Job::End(FinishReason reason) {
  const std::lock_guard lock(mutex_);
  if (update_.ended) return;
  update_.ended = true;
  update_.reason = reason;
  Wake();
}

void Job::Fail(const std::string& error) {
  const std::lock_guard lock(mutex_);
  if (update_.ended) return;
  update_.ended = true;
  try {
    update_.error = error;
  } catch (const std::bad_alloc&) {
    update_.error = "out of memory";  // needs none
  }
  Wake();
}

Job::Update Job::Take() {
  const std::lock_guard lock(mutex_);
  Update update = update_;
  update_.tokens.clear();
  update_.prompt_tokens.clear();
  return update;
}

void Job::OnChange(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
  const bool any = !update_.tokens.empty() || !update_.prompt_tokens.empty();
  if (any || update_.ended || update_.phase != JobPhase::kQueued) Wake();
}

void Job::Wake() {
  if (wake_) wake_();
}

}  // namespace thimble::server
