#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace thimble {

/// Calls `action`, which must throw an Error of `code` whose message holds every one of `parts`.
/// Returns the message.
template <typename F>
std::string ExpectError(ErrorCode code, const std::vector<std::string>& parts, const F& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), code) << message;
    for (const std::string& part : parts) EXPECT_THAT(message, testing::HasSubstr(part));
    return message;
  }
  ADD_FAILURE() << "expected an Error, nothing was thrown"
                << (parts.empty() ? "" : " (about " + parts.front() + ")");
  return {};
}

/// The same for damaged or contradictory model files.
template <typename F>
std::string ExpectBadModel(const std::vector<std::string>& parts, const F& action) {
  return ExpectError(ErrorCode::kBadModel, parts, action);
}

}  // namespace thimble
