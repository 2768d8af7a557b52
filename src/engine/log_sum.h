#pragma once

#include <span>

namespace thimble {

/// ln of the sum of exp(logits), in double: what is subtracted from a logit to give the logarithm
/// of its probability. Summed in the order of the tokens, so the same logits give the same bits.
/// Not finite where a logit is not.
double LogSumExp(std::span<const float> logits);

}  // namespace thimble
