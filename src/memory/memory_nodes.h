#pragma once

#include <cstddef>
#include <string>

namespace thimble {

/// How large memory lies over the nodes of a machine with several memory controllers (NUMA). Pages
/// go to the node of the thread that touches them first; weights, which all threads read, would
/// then lie behind one controller.
struct MemoryNodes {
  size_t count = 1;          // nodes that this process may take memory from
  bool interleaves = false;  // pages go to each node in turn
  std::string reason;        // why they do not; empty where they do
};

/// What was found when it was first asked. A policy that was given to the process (numactl) stays.
const MemoryNodes& ProcessMemoryNodes();

/// Spreads pages that were not touched yet, where MemoryNodes::interleaves.
void InterleavePages(void* pages, size_t bytes);

}  // namespace thimble
