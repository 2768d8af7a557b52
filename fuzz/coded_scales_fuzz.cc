// Any bytes, taken as a number of scales (two bytes) and as many scales coded: either no code or
// scales, and nothing outside is touched. The same bytes, taken as scales, come back.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "codec/coded_scales.h"

namespace {

void RoundTrip(std::span<const uint8_t> scales) {
  std::vector<uint8_t> coded;
  thimble::AppendCodedScales(scales, &coded);
  std::vector<uint8_t> decoded(scales.size());
  THIMBLE_CHECK(thimble::DecodeScales(coded, decoded));
  THIMBLE_CHECK(std::ranges::equal(decoded, scales));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t count = data[0] | size_t{data[1]} << 8;
  const std::span<const uint8_t> bytes(data + 2, size - 2);
  // Of exactly this size, so that a sanitizer sees the first byte beyond.
  const auto out = std::make_unique<uint8_t[]>(count);
  thimble::DecodeScales(bytes, {out.get(), count});
  RoundTrip(bytes);
  return 0;
}
