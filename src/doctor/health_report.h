#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"

namespace thimble {

enum class Verdict : uint8_t { kOk, kWarn, kFail };

/// One line of the doctor's report.
struct HealthCheck {
  std::string name;
  Verdict verdict = Verdict::kOk;
  std::string found;
  std::string remedy;  // empty where there is nothing to do
  nlohmann::ordered_json figures = nlohmann::ordered_json::object();  // the same for programs
  ErrorCode failure = ErrorCode::kRuntime;                            // exit code, where it failed
};

/// What the doctor found, in the order of looking.
struct HealthReport {
  std::vector<HealthCheck> checks;
  std::string next;  // the command to run now

  HealthCheck& Add(std::string name, Verdict verdict, std::string found, std::string remedy = {});
  /// Null where there is no check of that name.
  const HealthCheck* Find(const std::string& name) const;
  /// Null where nothing failed.
  const HealthCheck* FirstFailure() const;

  std::string Text() const;
  std::string Json() const;
};

}  // namespace thimble
