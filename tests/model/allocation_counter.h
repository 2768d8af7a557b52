#pragma once

#include <cstddef>

namespace thimble {

/// Calls of operator new in this test program so far, by all threads.
size_t NumAllocations();

}  // namespace thimble
