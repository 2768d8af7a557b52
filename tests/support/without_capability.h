#pragma once

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace thimble {

/// Takes an effective capability (CAP_IPC_LOCK, ...) from the calling thread for as long as it
/// lives, so that a limit binds in a test that runs as root as it does for anyone else.
class WithoutCapability {
 public:
  explicit WithoutCapability(unsigned capability) {
    ::syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct reduced[2] = {before_[0], before_[1]};
    reduced[capability / 32].effective &= ~(uint32_t{1} << capability % 32);
    ::syscall(SYS_capset, &header_, reduced);
  }
  ~WithoutCapability() { ::syscall(SYS_capset, &header_, before_); }
  WithoutCapability(const WithoutCapability&) = delete;
  WithoutCapability& operator=(const WithoutCapability&) = delete;

 private:
  __user_cap_header_struct header_ = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2] = {};
};

}  // namespace thimble
