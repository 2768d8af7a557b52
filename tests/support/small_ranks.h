#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace thimble {

inline std::string EncodeBase64(std::string_view bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) {
      bits = bits << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += i + j > bytes.size() ? '=' : kAlphabet[bits >> (18 - 6 * j) & 63];
    }
  }
  return text;
}

/// A rank file: the 256 single bytes, token b of rank b, and then `merges`.
inline std::string SmallRankFile(const std::vector<std::string>& merges) {
  std::string file;
  size_t rank = 0;
  const auto add = [&file, &rank](std::string_view token) {
    file += EncodeBase64(token) + ' ' + std::to_string(rank++) + '\n';
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const std::string& merge : merges) add(merge);
  return file;
}

}  // namespace thimble
