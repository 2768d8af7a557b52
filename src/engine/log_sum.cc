#include "engine/log_sum.h"

#include <algorithm>
#include <cmath>

namespace thimble {

double LogSumExp(std::span<const float> logits) {
  const auto most = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  return std::log(sum) + most;
}

}  // namespace thimble
