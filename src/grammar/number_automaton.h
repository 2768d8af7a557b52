#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "grammar/byte_automaton.h"

namespace thimble {

/// A decimal number of any size, as its digits: 12.5 is {false, "12", "5"}, 0 is {false, "0", ""}.
struct Decimal {
  bool negative = false;
  std::string whole;  // no zeros in front, at least one digit
  std::string part;   // no zeros at the end

  bool is_zero() const { return whole == "0" && part.empty(); }
};

/// A number as JsonValue spells it, exponents included. Absent where it has more than 400 digits.
std::optional<Decimal> ParseDecimal(std::string_view text);
/// Negative, zero or positive, as a is below, equal to or above b.
int CompareDecimals(const Decimal& a, const Decimal& b);

/// What numbers may be.
struct NumberBounds {
  struct Bound {
    Decimal value;
    bool excluded = false;
  };
  bool integer = false;
  std::optional<Bound> min;
  std::optional<Bound> max;
  std::optional<Decimal> multiple_of;  // above 0
};

/// The JSON numbers within `bounds`: at most 20 digits on either side of the point, more before it
/// where a bound has more; exponents only without bounds, and so few digits of them that a double
/// holds the number. Empty where no number fits. Absent where that takes too many states, as with a
/// multiple_of of many digits.
std::optional<ByteAutomaton> NumberAutomaton(const NumberBounds& bounds);

/// Whether a number is within the bounds; multiple_of counts only where both are integers that fit
/// 64 bits.
bool IsWithin(const Decimal& value, const NumberBounds& bounds);

}  // namespace thimble
