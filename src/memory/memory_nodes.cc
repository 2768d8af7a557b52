#include "memory/memory_nodes.h"

#include <fmt/format.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace thimble {
namespace {

// mbind counts one bit more than it reads.
bool Spread(void* pages, size_t bytes, const bitmask& nodes) {
  return ::mbind(pages, bytes, MPOL_INTERLEAVE, nodes.maskp, nodes.size + 1, 0) == 0;
}

// Whether the kernel lets this process do it, which sandboxes may not.
std::string TrySpread(const bitmask& nodes) {
  constexpr size_t kTrialBytes = 4096;
  void* const page =
      ::mmap(nullptr, kTrialBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return "no memory to try it with";
  const bool spreads = Spread(page, kTrialBytes, nodes);
  const int error = errno;
  ::munmap(page, kTrialBytes);
  return spreads ? "" : fmt::format("the system refuses it: {}", std::strerror(error));
}

struct Found {
  MemoryNodes nodes;
  bitmask* mask = nullptr;  // libnuma's, for as long as the process lives
};

Found Look() {
  Found found;
  if (::numa_available() < 0) {
    found.nodes.reason = "the system has no memory nodes";
    return found;
  }
  found.mask = ::numa_get_mems_allowed();
  found.nodes.count = ::numa_bitmask_weight(found.mask);
  int policy = MPOL_DEFAULT;
  ::get_mempolicy(&policy, nullptr, 0, nullptr, 0);
  if (found.nodes.count < 2) {
    found.nodes.reason = "there is one memory node";
  } else if (policy != MPOL_DEFAULT) {
    found.nodes.reason = "the process was given a memory policy of its own";
  } else {
    found.nodes.reason = TrySpread(*found.mask);
  }
  found.nodes.interleaves = found.nodes.reason.empty();
  return found;
}

const Found& Ask() {
  static const Found found = Look();
  return found;
}

}  // namespace

const MemoryNodes& ProcessMemoryNodes() { return Ask().nodes; }

void InterleavePages(void* pages, size_t bytes) {
  const Found& found = Ask();
  // A refusal now changes the speed only.
  if (found.nodes.interleaves) Spread(pages, bytes, *found.mask);
}

}  // namespace thimble
