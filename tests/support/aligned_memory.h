#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

#include "io/block_reader.h"

namespace thimble {

/// Whole pages that a BlockReader may fill or replace, each byte `fill` at first.
class AlignedMemory {
 public:
  explicit AlignedMemory(size_t bytes, int fill = 0xcd) : bytes_(bytes) {
    void* const pages = ::mmap(nullptr, bytes + BlockReader::kAlignment, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(pages);
    std::memset(data_, fill, bytes);
  }
  ~AlignedMemory() {
    if (data_ != nullptr) ::munmap(data_, bytes_ + BlockReader::kAlignment);
  }
  AlignedMemory(AlignedMemory&& other) noexcept
      : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  AlignedMemory& operator=(AlignedMemory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }

  std::byte* data() { return data_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

}  // namespace thimble
