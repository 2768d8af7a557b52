#pragma once

#include <concepts>
#include <optional>

namespace thimble {

/// a * b, or nothing where it does not fit. For every size that a file has a say in.
template <std::integral T>
constexpr std::optional<T> CheckedMul(T a, T b) {
  T result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// a + b, or nothing where it does not fit.
template <std::integral T>
constexpr std::optional<T> CheckedAdd(T a, T b) {
  T result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// The least multiple of `unit` that is at least `value`; `unit` is positive.
template <std::unsigned_integral T>
constexpr T RoundUp(T value, T unit) {
  return (value + unit - 1) / unit * unit;
}

/// The number of `unit`s that cover `value`.
template <std::unsigned_integral T>
constexpr T CeilDiv(T value, T unit) {
  return (value + unit - 1) / unit;
}

}  // namespace thimble
