#include "memory/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/byte_size.h"
#include "base/process_limits.h"
#include "memory/memory_nodes.h"

namespace thimble {

Buffer::Buffer(MemoryBudget& budget, const std::string& name, uint64_t bytes)
    : reservation_(budget.Reserve(name, bytes)) {
  if (bytes == 0) return;
  void* pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) {
    throw Error(ErrorCode::kRuntime,
                fmt::format("the system refused {} of memory for {}: {}{}", FormatBytes(bytes),
                            name, std::strerror(errno), ExplainMemoryLimits(ReadProcessLimits())));
  }
  data_ = static_cast<std::byte*>(pages);
  InterleavePages(pages, bytes);
  // The kernel looks up every page of memory that a direct read fills: with large ones the same
  // read costs a sixth of the time. Advice only, so a refusal does not matter.
  ::madvise(pages, bytes, MADV_HUGEPAGE);
}

Buffer::~Buffer() {
  if (data_ != nullptr) ::munmap(data_, reservation_.bytes());
}

int Buffer::TryLock() {
  // Page by page as they are touched, so that pages which never are cost nothing.
  if (data_ == nullptr || ::mlock2(data_, bytes(), MLOCK_ONFAULT) == 0) return 0;
  return errno;
}

Buffer::Buffer(Buffer&& other) noexcept
    : reservation_(std::move(other.reservation_)), data_(std::exchange(other.data_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(reservation_, other.reservation_);
  std::swap(data_, other.data_);
  return *this;
}

}  // namespace thimble
