#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/process_limits.h"
#include "memory/process_memory.h"

namespace thimble {

/// What the kernel says of this machine, for `doctor`. Figures that it does not give are 0, names
/// are empty.
struct MachineFacts {
  std::string cpu;  // as its maker names it
  uint64_t memory_bytes = 0;
  uint64_t available_bytes = 0;                // to this process
  std::optional<uint64_t> cgroup_limit_bytes;  // absent: none below the machine's memory
  uint64_t swap_bytes = 0;
  uint64_t swap_used_bytes = 0;
  MemoryCeiling ceiling;  // the most that this process can hold
  ProcessLimits limits;
  std::vector<std::string> missing;  // of the kernel's file systems: "/proc"
};
MachineFacts ReadMachineFacts();

/// The file system that holds a folder.
struct FileSystemFacts {
  std::string type;  // "ext4"
  uint64_t free_bytes = 0;
  bool is_remote = false;  // its reads go over a network or to another program
};
FileSystemFacts ReadFileSystemFacts(const std::filesystem::path& folder);

}  // namespace thimble
