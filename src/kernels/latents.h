#pragma once

#include <cstddef>
#include <cstdint>

/// The rows of the latent cache as they are stored (docs/MODEL.md, "The latent cache").
namespace thimble {

enum class LatentFormat : uint8_t {
  kF32,
  kBF16,  // rounded to nearest, ties to even
  kFP8,   // E4M3 codes, and two E8M0 scales: of the latent and of the extra part
};

/// "f32", "bf16", "fp8".
const char* NameOf(LatentFormat format);

/// A row: the normalised latent, then the extra key part. They come out of different sublayers and
/// may differ by orders of magnitude, hence a scale for each in kFP8. Rows are stored without gaps.
struct LatentShape {
  LatentFormat format = LatentFormat::kF32;
  size_t latent = 0;
  size_t extra = 0;

  constexpr size_t Width() const { return latent + extra; }
  /// Stored: the elements in order, then, for kFP8, the two scales.
  constexpr size_t RowBytes() const {
    switch (format) {
      case LatentFormat::kF32:
        return Width() * 4;
      case LatentFormat::kBF16:
        return Width() * 2;
      case LatentFormat::kFP8:
        return Width() + 2;
    }
    return 0;
  }
};

/// Stores one row of `shape.Width()` floats as RowBytes() bytes at any address. The same bytes on
/// every machine. What is not finite comes back as NaN or infinity, which the decoder reports.
void EncodeLatent(const LatentShape& shape, const float* row, uint8_t* out) noexcept;

}  // namespace thimble
