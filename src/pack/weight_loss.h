#pragma once

#include <cmath>

namespace thimble {

/// What quantising weights cost: sums of squares over all of them.
struct WeightLoss {
  double differences = 0;  // of what is stored from what was given
  double weights = 0;      // as given

  void Add(const WeightLoss& other) {
    differences += other.differences;
    weights += other.weights;
  }
  /// The root mean square of the differences over that of the weights; 0 where nothing is there.
  double Relative() const { return weights > 0 ? std::sqrt(differences / weights) : 0; }
};

}  // namespace thimble
