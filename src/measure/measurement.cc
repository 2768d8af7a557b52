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

}  // namespace thimble
