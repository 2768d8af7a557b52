#include "model/router.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace thimble {
namespace {

// The sum of a group's two best candidates; the group's only one where it has no second.
float GroupScore(const float* candidates, size_t size) {
  float best = -std::numeric_limits<float>::infinity();
  float second = best;
  for (size_t i = 0; i < size; ++i) {
    if (candidates[i] > best) {
      second = best;
      best = candidates[i];
    } else if (candidates[i] > second) {
      second = candidates[i];
    }
  }
  return size > 1 ? best + second : best;
}

// order[0, count) <- the indices of the `count` largest of values[0, n), best first; of equal ones
// the lower index.
void SelectLargest(const float* values, size_t n, size_t count, uint32_t* order) {
  std::iota(order, order + n, 0U);
  std::partial_sort(order, order + count, order + n, [values](uint32_t a, uint32_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  });
}

// Takes the experts of all but the best groups out of the race.
void LimitGroups(const MoeConfig& moe, const RouterScratch& scratch) {
  const size_t size = moe.num_experts / moe.num_groups;
  for (size_t group = 0; group < moe.num_groups; ++group) {
    scratch.groups[group] = GroupScore(scratch.biased + group * size, size);
  }
  SelectLargest(scratch.groups, moe.num_groups, moe.num_groups, scratch.order);
  for (size_t i = moe.top_groups; i < moe.num_groups; ++i) {
    std::fill_n(scratch.biased + scratch.order[i] * size, size,
                -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

void RouteToken(const Kernels& kernels, const MoeConfig& moe, const float* bias, float* scores,
                const RouterScratch& scratch, std::span<Route> routes) {
  if (moe.score == RouterScore::kSigmoid) {
    kernels.sigmoid(scores, moe.num_experts, scores);
  } else {
    kernels.softmax(scores, moe.num_experts);
  }
  for (size_t i = 0; i < moe.num_experts; ++i) scratch.biased[i] = scores[i] + bias[i];
  if (moe.num_groups > moe.top_groups) LimitGroups(moe, scratch);
  SelectLargest(scratch.biased, moe.num_experts, routes.size(), scratch.order);
  std::sort(scratch.order, scratch.order + routes.size());
  float sum = 0;
  for (size_t i = 0; i < routes.size(); ++i) sum += scores[scratch.order[i]];
  const bool renormalize = moe.renormalize && routes.size() > 1;
  const float factor = renormalize ? 1.0F / (sum + 1e-20F) : 1.0F;
  for (size_t i = 0; i < routes.size(); ++i) {
    const uint32_t expert = scratch.order[i];
    routes[i] = {expert, scores[expert] * factor * moe.scaling_factor};
  }
}

}  // namespace thimble
