#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>

namespace thimble {

/// A system call that fails with `error` where its argument `argument` has a bit of `mask`; with a
/// mask of 0, always.
struct RefusedCall {
  uint32_t number;
  uint32_t error;
  uint32_t argument = 0;
  uint32_t mask = 0;
};

/// The kernel refuses `call` to this thread and those it starts, or with SECCOMP_FILTER_FLAG_TSYNC
/// in `flags` to the whole process, until they end. False where this process may not do that.
inline bool RefuseFromNowOn(const RefusedCall& call, unsigned flags = 0) {
  const auto argument = static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * call.argument);
  const auto refuse = SECCOMP_RET_ERRNO | call.error;
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call.number, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, call.mask, 0, call.mask == 0 ? uint8_t{0} : uint8_t{1}),
      BPF_STMT(BPF_RET | BPF_K, refuse),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0;
}

/// Runs `work` on a thread for which, and for whose threads, the kernel refuses a system call as an
/// older kernel or a sandbox would. False where this process may not set up such a thread.
inline bool RunWithout(const RefusedCall& call, const std::function<void()>& work) {
  bool set_up = false;
  std::thread thread([&] {
    set_up = RefuseFromNowOn(call);
    if (set_up) work();
  });
  thread.join();
  return set_up;
}

}  // namespace thimble
