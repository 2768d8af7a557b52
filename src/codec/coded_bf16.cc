#include "codec/coded_bf16.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"

namespace thimble {
namespace {

constexpr uint8_t ExponentOf(uint16_t element) { return static_cast<uint8_t>(element >> 7); }

// The exponents of a group by code, and the code of each.
struct ExponentCode {
  std::array<uint8_t, kCodedExponents> exponents;
  std::array<uint8_t, 256> codes;

  ExponentCode(const uint16_t* elements, size_t count) {
    std::array<size_t, 256> counts = {};
    for (size_t i = 0; i < count; ++i) ++counts[ExponentOf(elements[i])];
    std::array<uint8_t, 256> order;
    std::iota(order.begin(), order.end(), uint8_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](uint8_t e) { return counts[e]; });
    codes.fill(kCodedExponents);
    for (uint8_t code = 0; code < kCodedExponents; ++code) {
      exponents[code] = order[code];
      codes[order[code]] = code;
    }
  }
};

void SetWord(size_t value, uint8_t* to) {
  const auto word = static_cast<uint32_t>(value);
  std::memcpy(to, &word, sizeof(word));
}

// One row; its exponents without a code go to the end of `escapes`.
void EncodeRow(const uint16_t* elements, size_t cols, const ExponentCode& code, uint8_t* row,
               std::vector<uint8_t>* escapes) {
  for (size_t first = 0; first < cols; first += kCodedSpan) {
    const size_t count = std::min(kCodedSpan, cols - first);
    uint8_t* low = row + count;
    uint8_t* high = low + kCodedLowBytes;
    for (size_t i = 0; i < count; ++i) {
      const uint16_t element = elements[first + i];
      row[i] = static_cast<uint8_t>((element >> 8 & 0x80) | (element & 0x7f));
      const uint8_t c = code.codes[ExponentOf(element)];
      if (c == kCodedExponents) escapes->push_back(ExponentOf(element));
      const size_t shift = i / kCodedLowBytes * 2, lane = i % kCodedLowBytes;
      low[lane] = static_cast<uint8_t>(low[lane] | (c & 3) << shift);
      uint8_t& high_bits = high[lane % kCodedHighBytes];
      high_bits = static_cast<uint8_t>(high_bits | (c >> 2) << (shift + lane / kCodedHighBytes));
    }
    row = high + kCodedHighBytes;
  }
}

}  // namespace

bool IsSoundGroup(const uint8_t* bytes, uint64_t size, size_t rows, size_t cols) {
  if (size < kCodedHeadBytes) return false;
  const CodedGroup group = {bytes};
  if (group.total_bytes() != size) return false;
  // What is coded is shorter than the plain rows, always.
  const bool plain = size == MaxCodedGroupBytes(rows, cols);
  if (plain == group.is_coded()) return false;
  if (plain) return true;
  const uint64_t fixed = kCodedHeadBytes + rows * (sizeof(uint32_t) + CodedRowBytes(cols));
  if (size < fixed || group.EscapesBefore(rows) != size - fixed) return false;
  for (size_t row = 0; row < rows; ++row) {
    if (group.EscapesBefore(row) > group.EscapesBefore(row + 1)) return false;
  }
  return true;
}

void AppendCodedGroup(const uint16_t* elements, size_t rows, size_t cols,
                      std::vector<uint8_t>* out) {
  THIMBLE_CHECK(rows > 0 && cols > 0 && cols <= kMaxCodedCols);
  const size_t start = out->size();
  const uint64_t plain_bytes = MaxCodedGroupBytes(rows, cols);
  const ExponentCode code(elements, rows * cols);
  const size_t ends = start + kCodedHeadBytes;
  const size_t fixed = ends + rows * sizeof(uint32_t);
  out->resize(fixed + rows * CodedRowBytes(cols));
  std::vector<uint8_t> escapes;
  for (size_t row = 0; row < rows; ++row) {
    EncodeRow(elements + row * cols, cols, code, out->data() + fixed + row * CodedRowBytes(cols),
              &escapes);
    SetWord(escapes.size(), out->data() + ends + row * sizeof(uint32_t));
  }
  out->insert(out->end(), escapes.begin(), escapes.end());
  const bool coded = out->size() - start < plain_bytes;
  if (!coded) {
    out->resize(start + plain_bytes);
    std::memcpy(out->data() + ends, elements, rows * cols * sizeof(uint16_t));
  }
  uint8_t* head = out->data() + start;
  std::memset(head, 0, kCodedHeadBytes);
  SetWord(out->size() - start, head);
  head[4] = coded ? 1 : 0;
  if (coded) std::ranges::copy(code.exponents, head + 5);
}

}  // namespace thimble
