#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace thimble {

class Reservation;

/// The memory that Thimble may use, and what it is used for. Everything above 64 KiB is reserved
/// here before it is allocated. Safe from any thread; must outlive its reservations.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  /// Everything must have been returned.
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  /// Takes `bytes` for `name`, a line of the ledger. Error(kOverBudget) with the ledger in its
  /// message where that would pass the limit; nothing is taken then.
  Reservation Reserve(const std::string& name, uint64_t bytes);

  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t used_bytes() const;
  /// Bytes held now, by name; lines that hold nothing are left out.
  std::map<std::string, uint64_t> Ledger() const;

 private:
  friend class Reservation;
  void Return(const std::string& name, uint64_t bytes) noexcept;

  const uint64_t limit_bytes_;
  mutable std::mutex mutex_;
  uint64_t used_bytes_ = 0;
  std::map<std::string, uint64_t> ledger_;
};

/// A share of a budget, returned when destroyed. Movable.
class Reservation {
 public:
  Reservation() = default;
  ~Reservation();
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;

  uint64_t bytes() const { return bytes_; }

 private:
  friend class MemoryBudget;
  Reservation(MemoryBudget* budget, std::string name, uint64_t bytes)
      : budget_(budget), name_(std::move(name)), bytes_(bytes) {}

  MemoryBudget* budget_ = nullptr;
  std::string name_;
  uint64_t bytes_ = 0;
};

/// One line for each entry, largest first, then the sum: for messages and reports.
std::string FormatLedger(const std::map<std::string, uint64_t>& ledger);

}  // namespace thimble
