#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "format/model_config.h"
#include "memory/buffer.h"
#include "model/executor.h"
#include "model/layer_params.h"
#include "model/mlp.h"
#include "model/router.h"
#include "model/weights.h"

namespace thimble {

/// The mixture of experts (docs/MODEL.md, latent MoE), with E_i the routed experts:
///
///   z = latent_down x  (or x);  r = sum_i w_i E_i(z), by ascending i;
///   y = latent_up rms(r; latent_norm) + shared(x)
///
/// The experts are requested as soon as the router has chosen them. The latent projection and the
/// shared experts run while they are read. Experts are computed as they arrive, each into its own
/// row, and the rows are summed in ascending order of the expert.
class MoeLayer {
 public:
  MoeLayer(const ModelConfig& config, size_t max_tokens, Carver& carver);

  /// y[t] = the output of layer `layer`; `packed` is its normalised input, packed.
  void Forward(const Executor& executor, ExpertSource& experts, Mlp& shared, size_t layer,
               const LayerParams& params, size_t num_tokens, const Rows& packed, const Rows& y);

 private:
  // One (token, place among its routes) that an expert serves.
  struct Assignment {
    uint32_t expert;
    uint32_t row;  // token * top_k + place
    bool operator<(const Assignment& other) const {
      return expert != other.expert ? expert < other.expert : row < other.row;
    }
  };

  void Route(const Executor& executor, size_t layer, const LayerParams& params, size_t num_tokens,
             const Rows& packed);
  size_t ListExperts(size_t num_tokens);
  void RunExpert(const Executor& executor, const ExpertView& expert, const Rows& z);
  void Combine(const Executor& executor, size_t num_tokens, const Rows& y) const;

  const ModelConfig& config_;
  Rows scores_;
  Rows biased_;
  Rows groups_;
  uint32_t* order_;          // [max_tokens, num_experts]
  thimble::Route* routes_;   // [max_tokens, top_k]
  Assignment* assignments_;  // [max_tokens * top_k], by expert
  size_t num_assignments_ = 0;
  uint32_t* distinct_;  // experts of this layer and sweep
  Rows latent_;
  Rows latent_packed_;
  Rows gathered_;  // inputs of one expert, one row for each token that it serves
  Rows gate_;
  Rows up_;
  Rows inner_packed_;
  Rows outputs_;     // [max_tokens * top_k]: each expert's output in its own row
  Rows expert_out_;  // outputs of one expert, before they go to their rows
  Rows sum_;
  Rows sum_packed_;
  Rows routed_;  // latent_up of the sum
};

}  // namespace thimble
