#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "measure/measurement.h"
#include "measure/sweep_bench.h"

namespace thimble::cli {

/// What `thimble bench` found, as it is found: a line of a table each, or one JSON value at the
/// end.
class BenchReport {
 public:
  explicit BenchReport(bool as_json) : as_json_(as_json) {}

  /// Begins a part ("kernels", "io", "decode", "prefill") with what there is to say of all of it.
  void Begin(const std::string& part, const std::string& title);
  void Add(const Measurement& measurement);
  void Add(const SweepMeasurement& sweep);
  /// The present part could not be measured.
  void AddObstacle(const std::string& obstacle);
  /// Ends the report: prints `facts` and all that was added where JSON was asked for.
  void End(nlohmann::ordered_json facts);

 private:
  nlohmann::ordered_json& AddResult(const Measurement& measurement);

  const bool as_json_;
  std::string part_;
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json obstacles_ = nlohmann::ordered_json::object();
};

}  // namespace thimble::cli
