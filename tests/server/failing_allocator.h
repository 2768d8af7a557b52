#pragma once

#include <cstddef>

namespace thimble::server {

/// Lets the next `count` calls of operator new of the calling thread fail, as if no memory were
/// left.
void FailAllocations(size_t count);

}  // namespace thimble::server
