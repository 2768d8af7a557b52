#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace thimble {

/// XXH3-64 of bytes that arrive in pieces. It finds accidents (a flipped bit, a torn write), not
/// forgery. Movable; used by one thread.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void Update(const void* data, size_t bytes);
  /// Of all bytes since the start, or since Reset.
  uint64_t Digest() const;
  void Reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// XXH3-64 of some bytes.
uint64_t ChecksumOf(std::string_view bytes);

/// A checksum as files and messages show it: 16 hexadecimal digits.
std::string FormatChecksum(uint64_t checksum);

}  // namespace thimble
