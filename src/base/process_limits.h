#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/system_tree.h"

namespace thimble {

/// Limits that the system sets on this process, in bytes or in numbers; absent where there is none.
struct ProcessLimits {
  std::optional<uint64_t> open_files;     // RLIMIT_NOFILE
  std::optional<uint64_t> user_threads;   // RLIMIT_NPROC: of all processes of this user
  std::optional<uint64_t> group_threads;  // pids.max of the control group
  std::optional<uint64_t> address_space;  // RLIMIT_AS
  std::optional<uint64_t> data;           // RLIMIT_DATA: private memory that can be written
  std::optional<uint64_t> stack;          // RLIMIT_STACK, of the first thread
  std::optional<uint64_t> file_bytes;     // RLIMIT_FSIZE
  std::optional<uint64_t> locked;         // RLIMIT_MEMLOCK
};
ProcessLimits ReadProcessLimits(const SystemTree& tree = {});

/// For a program's main, before it starts a thread: raises the limits on open files and on the
/// stack as far as the system lets this process, gives threads stacks of a fixed size, and has a
/// write beyond the limit on file sizes fail rather than end the process. Error(kRuntime) where the
/// stack stays too small to work with.
void AdaptProcessLimits();

/// What to add to a message after the system refused memory, a thread or a file: the limits that
/// can be the cause, each with the command that raises it. Begins with "; ".
std::string ExplainMemoryLimits(const ProcessLimits& limits);
std::string ExplainThreadLimits(const ProcessLimits& limits);
std::string ExplainFileLimits(const ProcessLimits& limits);
/// The limit on the size of a file; empty where there is none.
std::string ExplainFileSizeLimit(const ProcessLimits& limits);

}  // namespace thimble
