#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace thimble {

/// Element types that a checkpoint may hold, as its headers name them.
enum class DType : uint8_t {
  kBF16,
  kF32,
  kU8,  // bytes: packed MXFP4 codes (two a byte) or their E8M0 scales
  kQ8,  // containers only: eight-bit codes with a scale for each 32 (codec/weight_matrix.h)
};

/// Bytes of an element; of kQ8 without its share of a scale.
constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 2;
    case DType::kF32:
      return 4;
    case DType::kU8:
    case DType::kQ8:
      return 1;
  }
  return 0;
}

constexpr std::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "BF16";
    case DType::kF32:
      return "F32";
    case DType::kU8:
      return "U8";
    case DType::kQ8:
      return "Q8";
  }
  return "?";
}

constexpr std::optional<DType> ParseDType(std::string_view name) {
  for (DType dtype : {DType::kBF16, DType::kF32, DType::kU8, DType::kQ8}) {
    if (NameOf(dtype) == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace thimble
