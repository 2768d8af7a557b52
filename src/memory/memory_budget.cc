#include "memory/memory_budget.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "base/byte_size.h"
#include "base/error.h"

namespace thimble {

MemoryBudget::~MemoryBudget() { assert(used_bytes_ == 0 && "a reservation outlives its budget"); }

Reservation MemoryBudget::Reserve(const std::string& name, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > limit_bytes_ - used_bytes_) {
    throw Error(ErrorCode::kOverBudget, "the memory budget of " + FormatBytes(limit_bytes_) +
                                            " has no room for " + FormatBytes(bytes) + " of " +
                                            name + "; in use:\n" + FormatLedger(ledger_) +
                                            "Grant more with --memory.");
  }
  // Where the system has no memory for the name, nothing has been taken.
  Reservation reservation(this, name, 0);
  if (bytes > 0) ledger_[name] += bytes;
  used_bytes_ += bytes;
  reservation.bytes_ = bytes;
  return reservation;
}

uint64_t MemoryBudget::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

std::map<std::string, uint64_t> MemoryBudget::Ledger() const {
  const std::lock_guard lock(mutex_);
  return ledger_;
}

void MemoryBudget::Return(const std::string& name, uint64_t bytes) noexcept {
  if (bytes == 0) return;  // it has no line
  const std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
  const auto line = ledger_.find(name);
  line->second -= bytes;
  if (line->second == 0) ledger_.erase(line);
}

Reservation::~Reservation() {
  if (budget_ != nullptr) budget_->Return(name_, bytes_);
}

Reservation::Reservation(Reservation&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)),
      name_(std::move(other.name_)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  std::swap(budget_, other.budget_);
  std::swap(name_, other.name_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

std::string FormatLedger(const std::map<std::string, uint64_t>& ledger) {
  std::vector<std::pair<std::string, uint64_t>> lines(ledger.begin(), ledger.end());
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  uint64_t sum = 0;
  std::string text;
  const auto append = [&text](const std::string& name, uint64_t bytes) {
    const std::string size = FormatBytes(bytes);
    text +=
        "  " + std::string(size.size() < 9 ? 9 - size.size() : 0, ' ') + size + "  " + name + "\n";
  };
  for (const auto& [name, bytes] : lines) {
    append(name, bytes);
    sum += bytes;
  }
  append("in all", sum);
  return text;
}

}  // namespace thimble
