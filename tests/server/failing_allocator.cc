#include "server/failing_allocator.h"

#include <cstdlib>
#include <new>

namespace {

thread_local size_t num_failures = 0;

void* Allocate(size_t bytes) noexcept {
  if (num_failures == 0) return std::malloc(bytes);
  --num_failures;
  return nullptr;
}

}  // namespace

void thimble::server::FailAllocations(size_t count) { num_failures = count; }

void* operator new(size_t bytes) {
  if (void* memory = Allocate(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept { return Allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
