#pragma once

#include <optional>
#include <span>

#include "base/token_id.h"
#include "server/job.h"

namespace thimble::server {

/// The token `id`, with the logarithm of its probability by `logits` and those of the `num_top`
/// likeliest tokens; without them where `num_top` is absent.
SampledToken Describe(TokenId id, std::span<const float> logits, std::optional<size_t> num_top);

}  // namespace thimble::server
