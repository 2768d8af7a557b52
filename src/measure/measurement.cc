#include "measure/measurement.h"

#include <algorithm>

#include "base/error.h"

namespace thimble {

Spread SpreadOf(std::vector<double> figures) {
  THIMBLE_CHECK(!figures.empty());
  std::sort(figures.begin(), figures.end());
  const size_t half = figures.size() / 2;
  const double median =
      figures.size() % 2 == 1 ? figures[half] : (figures[half - 1] + figures[half]) / 2;
  return {median, figures.front(), figures.back(), figures.size()};
}

void FailCheck(const std::string& what, double expected, double found) {
  throw Error(ErrorCode::kRuntime, what + " is wrong: expected " + std::to_string(expected) +
                                       ", found " + std::to_string(found) +
                                       "; please report this, with the processor's name");
}

}  // namespace thimble
