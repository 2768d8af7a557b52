#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace thimble {

/// Throws the Error(kRuntime) of a thread that the system refused: what it was for ("compute thread
/// 3 of 8"), the limits that can be the cause, and the remedy.
[[noreturn]] void FailThread(const std::string& purpose, const std::system_error& refusal);

/// A thread that runs `work`. Error(kRuntime) as above.
template <typename Work>
std::thread StartThread(const std::string& purpose, Work work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& refusal) {
    FailThread(purpose, refusal);
  }
}

}  // namespace thimble
