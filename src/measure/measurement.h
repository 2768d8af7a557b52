#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace thimble {

/// Figures of several rounds.
struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
  size_t rounds = 0;
};
/// Of at least one figure.
Spread SpreadOf(std::vector<double> figures);

/// What a rate counts.
enum class Unit : uint8_t {
  kBytes,  // of stored weights or of a state, read and written
  kFlops,  // a multiplication and an addition are two
  kTokens,
};

/// How fast one thing was. It is only there where its result was right.
struct Measurement {
  std::string name;
  Unit unit = Unit::kBytes;
  size_t num_threads = 1;
  Spread rate;  // a second
  /// What the machine itself did in the same rounds with as many threads: median of its rates.
  /// Absent where there is nothing to compare with.
  std::optional<double> limit;

  /// Of the limit.
  std::optional<double> Share() const {
    return limit ? std::optional(rate.median / *limit) : std::nullopt;
  }
};

/// The Error(kRuntime) of a result that is not what double precision gives.
[[noreturn]] void FailCheck(const std::string& what, double expected, double found);

}  // namespace thimble
