#pragma once

#include <cstddef>

#include "residency/forecast.h"

namespace thimble {

/// Times the engine's own matrix products on all of `num_threads` threads at once, in about 50 ms:
/// only the two WeightRates are set. The weights are 67 MB of each format; a last-level cache that
/// holds them flatters the machine. Charges them, and gives them back, to a budget of its own.
MachineRates MeasureCompute(size_t num_threads);

}  // namespace thimble
