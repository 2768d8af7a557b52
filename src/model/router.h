#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "format/model_config.h"
#include "kernels/kernels.h"

namespace thimble {

/// An expert that a token goes to.
struct Route {
  uint32_t expert;
  float weight;
};

/// Arrays that one routing needs, none shared between threads.
struct RouterScratch {
  float* biased;    // [num_experts]
  float* groups;    // [num_groups]
  uint32_t* order;  // [num_experts]
};

/// Chooses top_k experts of one token (docs/MODEL.md, router; DeepSeek-V3, arXiv 2412.19437,
/// section 2.1.2). `scores` [num_experts] holds the router's products and is overwritten with the
/// scores:
///
///   s = sigmoid(z) or softmax(z);  chosen = top_k of (s + bias), best groups only;
///   weight_i = s_i / (sum of the chosen s + 1e-20) * scaling_factor     (if renormalised)
///
/// Of equal candidates the lower index wins. `routes` [top_k] comes out by ascending expert.
void RouteToken(const Kernels& kernels, const MoeConfig& moe, const float* bias, float* scores,
                const RouterScratch& scratch, std::span<Route> routes);

}  // namespace thimble
