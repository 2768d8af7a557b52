#include "base/error.h"

namespace thimble {

void FailCheck(const char* condition, const char* file, int line) {
  throw Error(ErrorCode::kRuntime, std::string("internal error: ") + condition +
                                       " does not hold (" + file + ":" + std::to_string(line) +
                                       "); please report this with the command you ran");
}

}  // namespace thimble
