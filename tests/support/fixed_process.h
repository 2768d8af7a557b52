#pragma once

#include "base/byte_size.h"
#include "memory/process_memory.h"

namespace thimble {

/// For EngineOptions::process: a plan then depends neither on what this process holds, which a
/// sanitizer multiplies, nor on the tests that ran in it before.
inline constexpr ProcessMemory kFixedProcess = {.rss_bytes = 10 * kMB,
                                                .peak_rss_bytes = 10 * kMB,
                                                .page_table_bytes = 0,
                                                .major_faults = 0,
                                                .minor_faults = 0};

}  // namespace thimble
