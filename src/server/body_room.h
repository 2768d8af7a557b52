#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

namespace thimble::server {

/// A bound on the bytes that request bodies take together, for all connections. Claims are granted
/// in the order in which they were made. Used by one thread.
class BodyRoom {
 public:
  explicit BodyRoom(size_t bytes) : total_(bytes), free_(bytes) {}

  /// A claim, granted or waiting; given back when destroyed. The room must outlive it.
  class Claim {
   public:
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    bool granted() const { return granted_; }

   private:
    friend class BodyRoom;
    Claim(BodyRoom& room, size_t bytes, std::function<void()> on_grant)
        : room_(room), bytes_(bytes), on_grant_(std::move(on_grant)) {}

    BodyRoom& room_;
    const size_t bytes_;
    const std::function<void()> on_grant_;
    bool granted_ = false;
  };

  /// Claims `bytes`, or all there is where that is less. `on_grant` is called once they are free,
  /// maybe before this returns.
  std::unique_ptr<Claim> Take(size_t bytes, std::function<void()> on_grant);

  size_t free_bytes() const { return free_; }

 private:
  void Grant();

  const size_t total_;
  size_t free_;
  std::deque<Claim*> waiting_;
};

}  // namespace thimble::server
