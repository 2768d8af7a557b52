#pragma once

#include <cstdint>

namespace thimble {

/// A token's number in the vocabulary: its rank, or a reserved slot behind the ranks
/// (text/tokenizer.h).
using TokenId = uint32_t;

}  // namespace thimble
