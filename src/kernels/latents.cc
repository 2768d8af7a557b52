#include "kernels/latents.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/mxfp4.h"

namespace thimble {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinity = 0x7f800000;
constexpr uint8_t kNanScale = 255;

uint16_t ToBF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  // Rounding could carry a NaN into the sign.
  if ((bits & kMagnitude) > kInfinity) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// The least scale under which `largest` is at most 448 = 1.75 x 2^8, the largest E4M3 number.
uint8_t ScaleFor(float largest) {
  const auto bits = std::bit_cast<uint32_t>(largest);
  if (bits >= kInfinity) return kNanScale;
  const bool above = (bits & 0x7fffff) > 0x600000;  // the fraction of 1.75
  const int scale = static_cast<int>(bits >> 23) - 8 + (above ? 1 : 0);
  return static_cast<uint8_t>(std::max(scale, 0));
}

/// The nearest E4M3 number, ties to even; |value| <= 448.
uint8_t ToE4M3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80;
  const float magnitude = std::bit_cast<float>(bits & kMagnitude);
  if (magnitude < 0x1p-6F) {
    // Multiples of 2^-9; at 2^14 that is the last place of a float32, so the addition rounds.
    const float rounded = magnitude + 0x1p14F;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(rounded) & 0xf));
  }
  const uint32_t kept = bits & kMagnitude;
  const uint32_t rounded = (kept + 0x7ffff + (kept >> 20 & 1)) >> 20;
  constexpr uint32_t kBias = (127 - 7) << 3;  // of float32's exponent over E4M3's
  return static_cast<uint8_t>(sign | (rounded - kBias));
}

/// Writes `count` codes and returns their scale.
uint8_t EncodePart(const float* values, size_t count, uint8_t* codes) {
  uint32_t largest = 0;  // bits of magnitudes order as the numbers do, NaN above all
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & kMagnitude);
  }
  const uint8_t scale = ScaleFor(std::bit_cast<float>(largest));
  if (scale == kNanScale) {
    std::fill_n(codes, count, uint8_t{0});
    return scale;
  }
  const float inverse = std::ldexp(1.0F, 127 - scale);  // exact: a power of two
  for (size_t i = 0; i < count; ++i) codes[i] = ToE4M3(values[i] * inverse);
  return scale;
}

}  // namespace

const char* NameOf(LatentFormat format) {
  constexpr const char* kNames[] = {"f32", "bf16", "fp8"};
  return kNames[static_cast<size_t>(format)];
}

void EncodeLatent(const LatentShape& shape, const float* row, uint8_t* out) noexcept {
  switch (shape.format) {
    case LatentFormat::kF32:
      std::memcpy(out, row, shape.RowBytes());
      return;
    case LatentFormat::kBF16:
      for (size_t i = 0; i < shape.Width(); ++i) {
        const uint16_t half = ToBF16(row[i]);
        std::memcpy(out + i * sizeof(half), &half, sizeof(half));
      }
      return;
    case LatentFormat::kFP8:
      uint8_t* scales = out + shape.Width();
      scales[0] = EncodePart(row, shape.latent, out);
      scales[1] = EncodePart(row + shape.latent, shape.extra, out + shape.latent);
      return;
  }
}

}  // namespace thimble
