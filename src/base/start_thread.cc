#include "base/start_thread.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/process_limits.h"

namespace thimble {

void FailThread(const std::string& purpose, const std::system_error& refusal) {
  throw Error(ErrorCode::kRuntime,
              fmt::format("cannot start {}: {}{}", purpose, refusal.code().message(),
                          ExplainThreadLimits(ReadProcessLimits())));
}

}  // namespace thimble
