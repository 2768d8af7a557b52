#include "base/error.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace thimble {
namespace {

TEST(Error, CarriesCodeAndMessage) {
  ExpectError(ErrorCode::kUsage, {"what is wrong"},
              [] { throw Error(ErrorCode::kUsage, "what is wrong"); });
}

TEST(Check, NamesTheBrokenInvariantAndItsPlace) {
  ExpectError(ErrorCode::kRuntime, {"internal error", "1 + 1 == 3", "error_test.cc"},
              [] { THIMBLE_CHECK(1 + 1 == 3); });
  THIMBLE_CHECK(1 + 1 == 2);
}

}  // namespace
}  // namespace thimble
