#include "base/byte_size.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace thimble {
namespace {

char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

// The factor that a suffix stands for, or nothing.
std::optional<double> SuffixFactor(std::string_view suffix) {
  if (suffix.empty()) return 1.0;
  constexpr std::string_view kPrefixes = "KMGT";
  const size_t power = kPrefixes.find(Upper(suffix[0]));
  if (power == std::string_view::npos) {
    return suffix.size() == 1 && Upper(suffix[0]) == 'B' ? std::optional(1.0) : std::nullopt;
  }
  suffix.remove_prefix(1);
  double base = 1000;
  if (!suffix.empty() && Upper(suffix[0]) == 'I') {
    base = 1024;
    suffix.remove_prefix(1);
  }
  const bool ends = suffix.empty() || (suffix.size() == 1 && Upper(suffix[0]) == 'B');
  if (!ends) return std::nullopt;
  return std::pow(base, static_cast<double>(power + 1));
}

}  // namespace

std::optional<uint64_t> ParseByteSize(std::string_view text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || std::signbit(number) || !std::isfinite(number)) return std::nullopt;
  const auto factor = SuffixFactor(std::string_view(rest, static_cast<size_t>(end - rest)));
  if (!factor) return std::nullopt;
  const double bytes = std::round(number * *factor);
  if (bytes >= 0x1p63) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  int decimals = 0;
  if (unit > 0) decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.*f %s", decimals, value, kUnits[unit]);
  return text.data();
}

}  // namespace thimble
