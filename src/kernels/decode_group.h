#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace thimble {

/// Decodes one whole group of a coded tensor (codec/coded_bf16.h), as the kernels do that compute
/// with it: makes `elements` its rows * cols BF16 elements. False, and `elements` unchanged, where
/// `coded` is no such group.
bool DecodeGroup(std::span<const uint8_t> coded, size_t rows, size_t cols,
                 std::vector<uint16_t>* elements);

}  // namespace thimble
