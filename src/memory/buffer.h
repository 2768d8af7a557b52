#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/checked_math.h"
#include "base/error.h"
#include "memory/memory_budget.h"

namespace thimble {

/// Page-aligned memory from the kernel, in large pages where it has them, spread over the memory
/// nodes where there are several (ProcessMemoryNodes), charged to a budget, zero at first, given
/// back to the kernel when destroyed. Movable. Pages that are never touched cost nothing but are
/// charged all the same.
class Buffer {
 public:
  Buffer() = default;
  /// Error(kOverBudget) where the budget has no room, Error(kRuntime) where the kernel refuses.
  Buffer(MemoryBudget& budget, const std::string& name, uint64_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  /// Asks the kernel never to swap out what of it is touched from now on. 0, or the errno of its
  /// refusal: ENOMEM where RLIMIT_MEMLOCK does not reach, EPERM where that is 0.
  int TryLock();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  uint64_t bytes() const { return reservation_.bytes(); }

 private:
  Reservation reservation_;
  std::byte* data_ = nullptr;
};

/// Hands out parts of one buffer in turn, each aligned to a cache line; the owner keeps the buffer.
/// With no buffer it only counts: the same code then says how much a layout needs.
class Carver {
 public:
  Carver() = default;
  explicit Carver(Buffer& buffer) : Carver(buffer.data(), buffer.bytes()) {}
  Carver(std::byte* base, uint64_t limit_bytes) : base_(base), limit_(limit_bytes) {}

  /// `count` objects of T, or null when counting.
  template <typename T>
  T* Take(size_t count) {
    const uint64_t offset = position_;
    position_ += RoundUp<uint64_t>(count * sizeof(T), kAlignment);
    used_ = std::max(used_, position_);
    if (base_ == nullptr) return nullptr;
    THIMBLE_CHECK(used_ <= limit_);
    return reinterpret_cast<T*>(base_ + offset);
  }

  /// The place of the next part, to come back to with Restart: parts that are never in use at the
  /// same time can then share memory.
  uint64_t position() const { return position_; }
  Carver& Restart(uint64_t position) {
    position_ = position;
    return *this;
  }

  /// What all parts need together.
  uint64_t used_bytes() const { return used_; }

 private:
  static constexpr uint64_t kAlignment = 64;
  std::byte* base_ = nullptr;
  uint64_t limit_ = 0;
  uint64_t position_ = 0;
  uint64_t used_ = 0;
};

}  // namespace thimble
