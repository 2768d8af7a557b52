#include "codec/coded_scales.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/checked_math.h"

namespace thimble {
namespace {

constexpr size_t kScaleHeadBytes = 4;
constexpr size_t kExceptionBytes = 2;
constexpr size_t kMostPassed = 255;

constexpr size_t CodeBytes(size_t count, size_t bits) { return CeilDiv<size_t>(count * bits, 8); }

// All scales, the commonest first.
std::array<uint8_t, 256> ByFrequency(std::span<const uint8_t> scales) {
  std::array<size_t, 256> counts = {};
  for (const uint8_t scale : scales) ++counts[scale];
  std::array<uint8_t, 256> order;
  std::iota(order.begin(), order.end(), uint8_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](uint8_t scale) { return counts[scale]; });
  return order;
}

void AppendExceptions(std::span<const uint8_t> scales, const std::array<bool, 256>& has_code,
                      std::vector<uint8_t>* out) {
  size_t next = 0;  // the first scale after the last exception
  const auto add = [&](size_t at) {
    out->push_back(static_cast<uint8_t>(at - next));
    out->push_back(scales[at]);
    next = at + 1;
  };
  for (size_t i = 0; i < scales.size(); ++i) {
    if (has_code[scales[i]]) continue;
    while (i - next > kMostPassed) add(next + kMostPassed);
    add(i);
  }
}

std::vector<uint8_t> EncodeBlock(std::span<const uint8_t> scales,
                                 const std::array<uint8_t, 256>& order, size_t bits) {
  const size_t num_codes = size_t{1} << bits;
  std::array<uint8_t, 256> code_of = {};
  std::array<bool, 256> has_code = {};
  for (size_t code = 0; code < num_codes; ++code) {
    code_of[order[code]] = static_cast<uint8_t>(code);
    has_code[order[code]] = true;
  }
  const size_t first_code = kScaleHeadBytes + num_codes;
  const size_t first_exception = first_code + CodeBytes(scales.size(), bits);
  std::vector<uint8_t> block(first_exception);
  std::copy_n(order.begin(), num_codes, &block[kScaleHeadBytes]);
  for (size_t i = 0; i < scales.size(); ++i) {
    uint8_t& byte = block[first_code + i * bits / 8];
    byte = static_cast<uint8_t>(byte | code_of[scales[i]] << (i * bits % 8));
  }
  AppendExceptions(scales, has_code, &block);
  const auto exceptions = static_cast<uint16_t>((block.size() - first_exception) / kExceptionBytes);
  block[0] = static_cast<uint8_t>(bits);
  std::memcpy(&block[2], &exceptions, sizeof(exceptions));
  return block;
}

// `Scales` holds the scales of one byte of codes.
template <typename Scales>
void DecodeCodes(const uint8_t* codes, const uint8_t* scale_of, std::span<uint8_t> out) {
  constexpr size_t kPerByte = sizeof(Scales);
  constexpr size_t kBits = 8 / kPerByte;
  std::array<Scales, 256> scales_of;
  std::memset(scales_of.data(), scale_of[0], sizeof(Scales));
  for (size_t byte = 1; byte < scales_of.size(); ++byte) {
    const auto rest = static_cast<Scales>(scales_of[byte >> kBits] << 8);
    scales_of[byte] = static_cast<Scales>(rest | scale_of[byte & ((1U << kBits) - 1)]);
  }
  const size_t whole = out.size() / kPerByte;
  for (size_t i = 0; i < whole; ++i) {
    std::memcpy(out.data() + i * kPerByte, &scales_of[codes[i]], kPerByte);
  }
  const auto rest = out.subspan(whole * kPerByte);
  if (!rest.empty()) std::memcpy(rest.data(), &scales_of[codes[whole]], rest.size());
}

bool PutExceptions(std::span<const uint8_t> exceptions, std::span<uint8_t> out) {
  size_t at = 0;
  for (size_t i = 0; i < exceptions.size(); i += kExceptionBytes) {
    at += exceptions[i];
    if (at >= out.size()) return false;
    out[at++] = exceptions[i + 1];
  }
  return true;
}

// Takes a block off the front of `coded`.
bool DecodeBlock(std::span<const uint8_t>* coded, std::span<uint8_t> out) {
  if (coded->size() < kScaleHeadBytes) return false;
  const size_t bits = (*coded)[0];
  if ((bits != 1 && bits != 2 && bits != 4) || (*coded)[1] != 0) return false;
  uint16_t exceptions;
  std::memcpy(&exceptions, coded->data() + 2, sizeof(exceptions));
  const size_t first_code = kScaleHeadBytes + (size_t{1} << bits);
  const size_t first_exception = first_code + CodeBytes(out.size(), bits);
  const size_t end = first_exception + exceptions * kExceptionBytes;
  if (coded->size() < end) return false;
  const uint8_t* scale_of = coded->data() + kScaleHeadBytes;
  const uint8_t* codes = coded->data() + first_code;
  if (bits == 1) DecodeCodes<uint64_t>(codes, scale_of, out);
  if (bits == 2) DecodeCodes<uint32_t>(codes, scale_of, out);
  if (bits == 4) DecodeCodes<uint16_t>(codes, scale_of, out);
  const bool sound = PutExceptions(coded->subspan(first_exception, end - first_exception), out);
  *coded = coded->subspan(end);
  return sound;
}

}  // namespace

void AppendCodedScales(std::span<const uint8_t> scales, std::vector<uint8_t>* out) {
  for (size_t first = 0; first < scales.size(); first += kScaleBlock) {
    const auto part = scales.subspan(first, std::min(kScaleBlock, scales.size() - first));
    const std::array<uint8_t, 256> order = ByFrequency(part);
    std::vector<uint8_t> shortest = EncodeBlock(part, order, 1);
    for (const size_t bits : {2, 4}) {
      std::vector<uint8_t> block = EncodeBlock(part, order, bits);
      if (block.size() < shortest.size()) shortest = std::move(block);
    }
    out->insert(out->end(), shortest.begin(), shortest.end());
  }
}

bool DecodeScales(std::span<const uint8_t> coded, std::span<uint8_t> out) {
  for (size_t first = 0; first < out.size(); first += kScaleBlock) {
    const size_t count = std::min(kScaleBlock, out.size() - first);
    if (!DecodeBlock(&coded, out.subspan(first, count))) return false;
  }
  return coded.empty();
}

}  // namespace thimble
