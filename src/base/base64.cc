#include "base/base64.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace thimble {
namespace {

constexpr uint8_t kNotBase64 = 0xff;

constexpr std::array<uint8_t, 256> MakeBase64Values() {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<uint8_t, 256> values{};
  for (uint8_t& value : values) value = kNotBase64;
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    values[static_cast<uint8_t>(kAlphabet[i])] = static_cast<uint8_t>(i);
  }
  return values;
}

constexpr std::array<uint8_t, 256> kBase64Values = MakeBase64Values();

}  // namespace

bool DecodeBase64(std::string_view text, std::string* bytes) {
  bytes->clear();
  if (text.size() % 4 != 0) return false;
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const uint8_t value = kBase64Values[static_cast<uint8_t>(c)];
    if (value == kNotBase64) return false;
    bits = (bits << 6 | value) & 0xffff;
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes->push_back(static_cast<char>(bits >> num_bits & 0xff));
  }
  return (bits & ((1u << num_bits) - 1)) == 0;
}

}  // namespace thimble
