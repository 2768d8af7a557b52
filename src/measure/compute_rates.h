#pragma once

#include <cstddef>
#include <span>

#include "residency/forecast.h"

namespace thimble {

/// Times the engine's own products with weights of `formats` on all of `num_threads` threads at
/// once, in about 25 ms each: only their rates are set. The weights are 67 MB of each format; a
/// last-level cache that holds them flatters the machine. Charges them, and gives them back, to a
/// budget of its own.
MachineRates MeasureCompute(std::span<const WeightFormat> formats, size_t num_threads);

}  // namespace thimble
