#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "io/block_reader.h"

namespace thimble {

/// Memory that a BlockReader may fill, each byte `fill` at first.
class AlignedMemory {
 public:
  explicit AlignedMemory(size_t bytes, int fill = 0xcd)
      : bytes_(static_cast<std::byte*>(::operator new(bytes, kAlignment))) {
    std::memset(bytes_.get(), fill, bytes);
  }

  std::byte* data() { return bytes_.get(); }

 private:
  static constexpr std::align_val_t kAlignment{BlockReader::kAlignment};
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
};

}  // namespace thimble
