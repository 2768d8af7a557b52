#include "format/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace thimble {

struct Checksum::State {
  XXH3_state_t xxh3;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { Reset(); }
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::Update(const void* data, size_t bytes) {
  XXH3_64bits_update(&state_->xxh3, data, bytes);
}

uint64_t Checksum::Digest() const { return XXH3_64bits_digest(&state_->xxh3); }

void Checksum::Reset() { XXH3_64bits_reset(&state_->xxh3); }

uint64_t ChecksumOf(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string FormatChecksum(uint64_t checksum) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = kDigits[checksum >> (60 - 4 * i) & 15];
  return text;
}

}  // namespace thimble
