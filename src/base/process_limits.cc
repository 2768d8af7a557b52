#include "base/process_limits.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <vector>

#include "base/byte_size.h"
#include "base/cgroup.h"
#include "base/error.h"

namespace thimble {
namespace {

constexpr uint64_t kWantedStackBytes = 8 * kMiB;  // what Linux gives by default
constexpr uint64_t kLeastStackBytes = 256 * kKiB;

std::optional<uint64_t> SoftLimit(__rlimit_resource resource) {
  struct rlimit limit = {};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

// Raises the soft limit to `wanted` or to the hard limit, whichever is less.
void Raise(__rlimit_resource resource, uint64_t wanted) {
  struct rlimit limit = {};
  if (::getrlimit(resource, &limit) != 0) return;
  const rlim_t target = std::min<rlim_t>(wanted, limit.rlim_max);
  if (limit.rlim_cur >= target) return;
  limit.rlim_cur = target;
  ::setrlimit(resource, &limit);  // a refusal leaves the limit as it was, which is reported later
}

std::string Join(const std::vector<std::string>& causes, const std::string& otherwise) {
  if (causes.empty()) return otherwise;
  return fmt::format("; {}", fmt::join(causes, "; "));
}

std::vector<std::string> MemoryCauses(const ProcessLimits& limits) {
  std::vector<std::string> causes;
  const auto add = [&](const char* what, const std::optional<uint64_t>& limit, char option) {
    if (!limit) return;
    causes.push_back(
        fmt::format("the {} of a process is limited to {}: raise the limit with "
                    "'ulimit -{}', or grant less with --memory",
                    what, FormatBytes(*limit), option));
  };
  add("address space", limits.address_space, 'v');
  add("data segment", limits.data, 'd');
  return causes;
}

}  // namespace

ProcessLimits ReadProcessLimits(const SystemTree& tree) {
  ProcessLimits limits;
  limits.open_files = SoftLimit(RLIMIT_NOFILE);
  limits.user_threads = SoftLimit(RLIMIT_NPROC);
  limits.group_threads = CgroupTaskLimit(tree);
  limits.address_space = SoftLimit(RLIMIT_AS);
  limits.data = SoftLimit(RLIMIT_DATA);
  limits.stack = SoftLimit(RLIMIT_STACK);
  limits.file_bytes = SoftLimit(RLIMIT_FSIZE);
  limits.locked = SoftLimit(RLIMIT_MEMLOCK);
  return limits;
}

void AdaptProcessLimits() {
  std::signal(SIGXFSZ, SIG_IGN);
  Raise(RLIMIT_NOFILE, RLIM_INFINITY);
  Raise(RLIMIT_STACK, kWantedStackBytes);
  // Without this a thread's stack is as large as the limit on the first thread's: a few pages, or
  // gigabytes.
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) == 0) {
    ::pthread_attr_setstacksize(&attributes, kWantedStackBytes);
    ::pthread_setattr_default_np(&attributes);
    ::pthread_attr_destroy(&attributes);
  }
  const auto stack = SoftLimit(RLIMIT_STACK);
  if (stack && *stack < kLeastStackBytes) {
    throw Error(ErrorCode::kRuntime,
                fmt::format("the stack is limited to {}, expected at least {}; raise the limit "
                            "with 'ulimit -s 8192'",
                            FormatBytes(*stack), FormatBytes(kLeastStackBytes)));
  }
}

std::string ExplainMemoryLimits(const ProcessLimits& limits) {
  return Join(MemoryCauses(limits),
              "; the machine has no more to give: close other programs, or grant less with "
              "--memory");
}

std::string ExplainThreadLimits(const ProcessLimits& limits) {
  std::vector<std::string> causes = MemoryCauses(limits);  // a stack takes its part
  if (limits.user_threads) {
    causes.push_back(
        fmt::format("this user may run {} processes and threads in all: raise the "
                    "limit with 'ulimit -u', or use fewer threads with -t",
                    *limits.user_threads));
  }
  if (limits.group_threads) {
    causes.push_back(
        fmt::format("the control group may run {} threads in all: raise its pids.max, "
                    "or use fewer threads with -t",
                    *limits.group_threads));
  }
  return Join(causes, "; the machine allows no more threads: use fewer with -t");
}

std::string ExplainFileLimits(const ProcessLimits& limits) {
  if (!limits.open_files) return "; the machine has no more to give: close other programs";
  return fmt::format("; a process may have {} files open: raise the limit with 'ulimit -n'",
                     *limits.open_files);
}

std::string ExplainFileSizeLimit(const ProcessLimits& limits) {
  if (!limits.file_bytes) return {};
  return fmt::format("; a file may have at most {}: raise the limit with 'ulimit -f'",
                     FormatBytes(*limits.file_bytes));
}

}  // namespace thimble
