#include "text/char_class.h"

#include <utf8proc.h>

#include <algorithm>
#include <map>

namespace thimble {
namespace {

struct Range {
  uint32_t first;
  uint32_t last;
};

bool Contains(const Range* begin, const Range* end, uint32_t code_point) {
  const Range* range = std::lower_bound(
      begin, end, code_point, [](const Range& r, uint32_t value) { return r.last < value; });
  return range != end && range->first <= code_point;
}

/// Scripts.txt of Unicode 17, Script=Han.
constexpr Range kHanRanges[] = {{0x2e80, 0x2e99},   {0x2e9b, 0x2ef3},   {0x2f00, 0x2fd5},
                                {0x3005, 0x3005},   {0x3007, 0x3007},   {0x3021, 0x3029},
                                {0x3038, 0x303b},   {0x3400, 0x4dbf},   {0x4e00, 0x9fff},
                                {0xf900, 0xfa6d},   {0xfa70, 0xfad9},   {0x16fe2, 0x16fe3},
                                {0x16ff0, 0x16ff6}, {0x20000, 0x2a6df}, {0x2a700, 0x2b81d},
                                {0x2b820, 0x2cead}, {0x2ceb0, 0x2ebe0}, {0x2ebf0, 0x2ee5d},
                                {0x2f800, 0x2fa1d}, {0x30000, 0x3134a}, {0x31350, 0x33479}};

/// PropList.txt, White_Space. U+001C to U+001F are not in it, though Python's isspace has them.
constexpr Range kSpaceRanges[] = {
    {0x09, 0x0d},     {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
    {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};

/// The classes that follow from the general category alone, before Han is taken out.
CharClassSet CategoryClasses(uint32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return kLetter | kUpper;
    case UTF8PROC_CATEGORY_LL:
      return kLetter | kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter | kUpper | kLower;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kOther | kUpper | kLower;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    default:
      return kOther;
  }
}

bool IsUnassigned(uint32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point)) == UTF8PROC_CATEGORY_CN;
}

CharClassSet HanClasses(uint32_t code_point) {
  // Blocks of ideographs newer than utf8proc: all of them are letters (Lo).
  if (IsUnassigned(code_point)) return kHan | kLetter;
  constexpr CharClassSet kCased = kUpper | kLower;
  return static_cast<CharClassSet>((CategoryClasses(code_point) & ~kCased) | kHan);
}

CharClassSet ComputeClasses(uint32_t code_point) {
  if (code_point == '\r' || code_point == '\n') return kSpace | kNewline;
  if (Contains(std::begin(kSpaceRanges), std::end(kSpaceRanges), code_point)) return kSpace;
  if (Contains(std::begin(kHanRanges), std::end(kHanRanges), code_point)) {
    return HanClasses(code_point);
  }
  return CategoryClasses(code_point);
}

}  // namespace

CharClassTable::CharClassTable() {
  std::map<Page, uint16_t> known;
  for (uint32_t page_index = 0; page_index < kNumPages; ++page_index) {
    Page page;
    for (uint32_t i = 0; i < kPageSize; ++i) page[i] = ComputeClasses(page_index * kPageSize + i);
    const auto [entry, added] = known.emplace(page, static_cast<uint16_t>(pages_.size()));
    if (added) pages_.push_back(page);
    page_of_[page_index] = entry->second;
  }
}

const CharClassTable& CharClassTable::Get() {
  static const CharClassTable table;
  return table;
}

}  // namespace thimble
