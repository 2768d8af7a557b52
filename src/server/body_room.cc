#include "server/body_room.h"

#include <algorithm>

namespace thimble::server {

std::unique_ptr<BodyRoom::Claim> BodyRoom::Take(size_t bytes, std::function<void()> on_grant) {
  std::unique_ptr<Claim> claim(new Claim(*this, std::min(bytes, total_), std::move(on_grant)));
  waiting_.push_back(claim.get());
  Grant();
  return claim;
}

void BodyRoom::Grant() {
  while (!waiting_.empty() && waiting_.front()->bytes_ <= free_) {
    Claim& claim = *waiting_.front();
    waiting_.pop_front();
    free_ -= claim.bytes_;
    claim.granted_ = true;
    claim.on_grant_();
  }
}

BodyRoom::Claim::~Claim() {
  if (granted_) {
    room_.free_ += bytes_;
  } else {
    std::erase(room_.waiting_, this);
  }
  room_.Grant();
}

}  // namespace thimble::server
