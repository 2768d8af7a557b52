#include "text/utf8.h"

#include <cstring>

namespace thimble {
namespace {

/// What must follow a lead byte: `length` bytes in all, the second within [low, high].
struct LeadByte {
  uint8_t length;  // 0: not a lead byte
  uint8_t low;
  uint8_t high;
};

LeadByte ClassifyLead(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xc2) return {0, 0, 0};
  if (lead < 0xe0) return {2, 0x80, 0xbf};
  if (lead == 0xe0) return {3, 0xa0, 0xbf};
  if (lead == 0xed) return {3, 0x80, 0x9f};
  if (lead < 0xf0) return {3, 0x80, 0xbf};
  if (lead == 0xf0) return {4, 0x90, 0xbf};
  if (lead < 0xf4) return {4, 0x80, 0xbf};
  if (lead == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

size_t SkipAscii(std::string_view bytes, size_t at) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  while (at + sizeof(uint64_t) <= bytes.size()) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    if (word & kHighBits) break;
    at += sizeof(word);
  }
  return at;
}

}  // namespace

Utf8Char InspectUtf8(std::string_view bytes) {
  const auto byte = [bytes](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const LeadByte lead = ClassifyLead(byte(0));
  if (lead.length == 0) return {Utf8Status::kInvalid, 1};
  for (uint8_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Utf8Status::kTruncated, i};
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xbf;
    if (byte(i) < low || byte(i) > high) return {Utf8Status::kInvalid, i};
  }
  return {Utf8Status::kValid, lead.length};
}

size_t ValidUtf8Prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (static_cast<uint8_t>(bytes[at]) < 0x80) {
      at = SkipAscii(bytes, at + 1);
      continue;
    }
    const Utf8Char next = InspectUtf8(bytes.substr(at));
    if (next.status != Utf8Status::kValid) break;
    at += next.length;
  }
  return at;
}

}  // namespace thimble
