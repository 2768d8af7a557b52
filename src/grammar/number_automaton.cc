#include "grammar/number_automaton.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

namespace thimble {
namespace {

constexpr size_t kMaxDigits = 20;    // on either side of the point, unless a bound has more
constexpr size_t kMaxDecimal = 400;  // digits of a bound
constexpr uint64_t kMaxModulus = 100'000;
constexpr size_t kMaxStates = 10'000;

enum class Phase : uint8_t {
  kStart,
  kMinus,
  kZero,
  kWhole,
  kPoint,
  kPart,
  kExp,
  kExpSign,
  kExpDigit,
  kEnd
};

// How what was read compares with a bound's digits as far as they go.
struct Position {
  Phase phase = Phase::kStart;
  bool negative = false;
  uint16_t whole_digits = 0;
  uint16_t part_digits = 0;
  int8_t to_min = 0;
  int8_t to_max = 0;
  uint32_t remainder = 0;
  auto operator<=>(const Position&) const =
      default;  // NOLINT(modernize-use-nullptr): of clang-tidy 14
};

int Sign(int value) { return value < 0 ? -1 : (value > 0 ? 1 : 0); }

class NumberBuilder {
 public:
  explicit NumberBuilder(const NumberBounds& bounds)
      : bounds_(bounds),
        max_part_(bounds.integer ? 0 : kMaxDigits),
        is_bounded_(bounds.min || bounds.max || bounds.multiple_of) {
    for (const auto* bound : {&bounds.min, &bounds.max}) {
      if (*bound) max_whole_ = std::max(max_whole_, (*bound)->value.whole.size() + 1);
    }
    for (const auto* bound : {&bounds.min, &bounds.max}) {
      if (*bound && !bounds.integer)
        max_part_ = std::max(max_part_, (*bound)->value.part.size() + 2);
    }
  }

  // False where multiple_of needs too many states.
  bool SetModulus() {
    if (!bounds_.multiple_of) return true;
    const Decimal& step = *bounds_.multiple_of;
    const std::string digits = step.whole + step.part;
    if (digits.size() > 6) return false;
    modulus_ = std::strtoull(digits.c_str(), nullptr, 10);
    scale_ = step.part.size();
    max_part_ = bounds_.integer ? 0 : scale_;
    return modulus_ > 0 && modulus_ <= kMaxModulus;
  }

  std::optional<ByteAutomaton> Build() {
    Number({});
    std::vector<ByteAutomaton::State> states;
    // NOLINTNEXTLINE(modernize-loop-convert): it grows meanwhile
    for (size_t i = 0; i < positions_.size(); ++i) {
      const Position position = positions_[i];
      ByteAutomaton::State state;
      state.accepts = Accepts(position);
      for (const char c : std::string_view("+-.0123456789Ee")) {
        const auto next = Step(position, c);
        if (!next) continue;
        const auto byte = static_cast<uint8_t>(c);
        const uint32_t target = Number(*next);
        state.edges.push_back({byte, byte, target});
      }
      states.push_back(std::move(state));
      if (positions_.size() > kMaxStates) return std::nullopt;
    }
    return ByteAutomaton(std::move(states));
  }

 private:
  uint32_t Number(const Position& position) {
    const auto [place, is_new] =
        known_.try_emplace(position, static_cast<uint32_t>(positions_.size()));
    if (is_new) positions_.push_back(position);
    return place->second;
  }

  std::optional<Position> Step(Position position, char c) const {
    const bool is_digit = c >= '0' && c <= '9';
    switch (position.phase) {
      case Phase::kStart:
        if (c == '-') {
          position.phase = Phase::kMinus;
          position.negative = true;
          return position;
        }
        [[fallthrough]];
      case Phase::kMinus:
        if (!is_digit) return std::nullopt;
        position.phase = c == '0' ? Phase::kZero : Phase::kWhole;
        return Whole(position, c);
      case Phase::kWhole:
        if (is_digit) return Whole(position, c);
        [[fallthrough]];
      case Phase::kZero:
        if (c != '.' || max_part_ == 0) return Exponent(position, c);
        position = EndWhole(position);
        position.phase = Phase::kPoint;
        return position;
      case Phase::kPoint:
      case Phase::kPart:
        if (!is_digit) {
          return position.phase == Phase::kPart ? Exponent(position, c) : std::nullopt;
        }
        position.phase = Phase::kPart;
        return Part(position, c);
      default:
        return ExponentDigit(position, c);
    }
  }

  std::optional<Position> Exponent(Position position, char c) const {
    if (is_bounded_ || bounds_.integer || (c != 'e' && c != 'E')) return std::nullopt;
    position = {};
    position.phase = Phase::kExp;
    return position;
  }
  static std::optional<Position> ExponentDigit(Position position, char c) {
    const bool is_sign = c == '+' || c == '-';
    const Phase phase = position.phase;
    if (is_sign && phase != Phase::kExp) return std::nullopt;
    if (!is_sign && (c < '0' || c > '9' || phase == Phase::kEnd)) return std::nullopt;
    position.phase =
        is_sign ? Phase::kExpSign : (phase == Phase::kExpDigit ? Phase::kEnd : Phase::kExpDigit);
    return position;
  }

  std::optional<Position> Whole(Position position, char c) const {
    if (position.whole_digits == max_whole_) return std::nullopt;
    const auto compare = [&](const std::optional<NumberBounds::Bound>& bound, int8_t so_far) {
      if (!bound || so_far != 0 || position.whole_digits >= bound->value.whole.size())
        return so_far;
      return static_cast<int8_t>(Sign(c - bound->value.whole[position.whole_digits]));
    };
    position.to_min = compare(bounds_.min, position.to_min);
    position.to_max = compare(bounds_.max, position.to_max);
    ++position.whole_digits;
    return Divide(position, c);
  }
  std::optional<Position> Part(Position position, char c) const {
    if (position.part_digits == max_part_) return std::nullopt;
    const auto compare = [&](const std::optional<NumberBounds::Bound>& bound, int8_t so_far) {
      if (!bound || so_far != 0) return so_far;
      const std::string& part = bound->value.part;
      const char digit = position.part_digits < part.size() ? part[position.part_digits] : '0';
      return static_cast<int8_t>(Sign(c - digit));
    };
    position.to_min = compare(bounds_.min, position.to_min);
    position.to_max = compare(bounds_.max, position.to_max);
    ++position.part_digits;
    return Divide(position, c);
  }
  Position Divide(Position position, char c) const {
    if (modulus_ > 0) {
      position.remainder = static_cast<uint32_t>(
          (uint64_t{position.remainder} * 10 + static_cast<uint64_t>(c - '0')) % modulus_);
    }
    return position;
  }

  // A number with more digits before the point is the larger one.
  Position EndWhole(Position position) const {
    const auto compare = [&](const std::optional<NumberBounds::Bound>& bound, int8_t so_far) {
      if (!bound) return int8_t{0};
      const size_t digits = bound->value.whole.size();
      if (position.whole_digits == digits) return so_far;
      return static_cast<int8_t>(position.whole_digits < digits ? -1 : 1);
    };
    position.to_min = compare(bounds_.min, position.to_min);
    position.to_max = compare(bounds_.max, position.to_max);
    position.whole_digits = 0;
    return position;
  }

  bool Accepts(Position position) const {
    switch (position.phase) {
      case Phase::kZero:
        if (position.negative) return false;  // -0
        [[fallthrough]];
      case Phase::kWhole:
        position = EndWhole(position);
        break;
      case Phase::kPart:
        break;
      case Phase::kExpDigit:
      case Phase::kEnd:
        return true;
      default:
        return false;
    }
    if (!Fits(position, bounds_.min, position.to_min, 1)) return false;
    if (!Fits(position, bounds_.max, position.to_max, -1)) return false;
    uint64_t remainder = position.remainder;
    for (size_t i = position.part_digits; modulus_ > 0 && i < scale_; ++i) {
      remainder = remainder * 10 % modulus_;
    }
    return remainder == 0;
  }
  // Whether the number is on the side of the bound that `side` says.
  static bool Fits(const Position& position, const std::optional<NumberBounds::Bound>& bound,
                   int to_bound, int side) {
    if (!bound) return true;
    if (position.negative != bound->value.negative) {
      return side == (position.negative ? -1 : 1);
    }
    if (to_bound == 0 && position.part_digits < bound->value.part.size()) to_bound = -1;
    if (to_bound == 0) return !bound->excluded;
    return (position.negative ? -to_bound : to_bound) == side;
  }

  const NumberBounds& bounds_;
  size_t max_whole_ = kMaxDigits;
  size_t max_part_;
  bool is_bounded_;
  uint64_t modulus_ = 0;  // of the number times 10^scale_; 0: any
  size_t scale_ = 0;
  std::map<Position, uint32_t> known_;
  std::vector<Position> positions_;
};

}  // namespace

std::optional<Decimal> ParseDecimal(std::string_view text) {
  Decimal decimal;
  if (text.starts_with('-')) {
    decimal.negative = true;
    text.remove_prefix(1);
  }
  long exponent = 0;
  const size_t e = text.find_first_of("eE");
  if (e != std::string_view::npos) {
    exponent = std::strtol(std::string(text.substr(e + 1)).c_str(), nullptr, 10);
    text = text.substr(0, e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  decimal.whole = text.substr(0, point);
  if (point < text.size()) decimal.part = text.substr(point + 1);
  if (decimal.whole.size() > kMaxDecimal || std::labs(exponent) > static_cast<long>(kMaxDecimal)) {
    return std::nullopt;
  }
  for (; exponent > 0; --exponent) {
    decimal.whole += decimal.part.empty() ? '0' : decimal.part.front();
    if (!decimal.part.empty()) decimal.part.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    decimal.part.insert(decimal.part.begin(), decimal.whole.empty() ? '0' : decimal.whole.back());
    if (!decimal.whole.empty()) decimal.whole.pop_back();
  }
  decimal.whole.erase(0, decimal.whole.find_first_not_of('0'));
  if (decimal.whole.empty()) decimal.whole = "0";
  decimal.part.erase(decimal.part.find_last_not_of('0') + 1);
  if (decimal.is_zero()) decimal.negative = false;
  return decimal;
}

int CompareDecimals(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int order = 0;
  if (a.whole.size() != b.whole.size()) {
    order = a.whole.size() < b.whole.size() ? -1 : 1;
  } else {
    order = Sign(a.whole.compare(b.whole));
    if (order == 0) order = Sign(a.part.compare(b.part));
  }
  return a.negative ? -order : order;
}

bool IsWithin(const Decimal& value, const NumberBounds& bounds) {
  if (bounds.integer && !value.part.empty()) return false;
  if (bounds.min) {
    const int order = CompareDecimals(value, bounds.min->value);
    if (order < 0 || (order == 0 && bounds.min->excluded)) return false;
  }
  if (bounds.max) {
    const int order = CompareDecimals(value, bounds.max->value);
    if (order > 0 || (order == 0 && bounds.max->excluded)) return false;
  }
  if (!bounds.multiple_of) return true;
  const Decimal& step = *bounds.multiple_of;
  const bool both_whole =
      value.part.empty() && step.part.empty() && value.whole.size() < 19 && step.whole.size() < 19;
  if (!both_whole) return true;
  return std::strtoull(value.whole.c_str(), nullptr, 10) %
             std::strtoull(step.whole.c_str(), nullptr, 10) ==
         0;
}

std::optional<ByteAutomaton> NumberAutomaton(const NumberBounds& bounds) {
  NumberBuilder builder(bounds);
  if (!builder.SetModulus()) return std::nullopt;
  return builder.Build();
}

}  // namespace thimble
