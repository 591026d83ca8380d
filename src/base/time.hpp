// Instant and Duration in nanoseconds. No clock is read here: only loop/clock.cpp and trace/ may (checked by a test).
//
// All arithmetic saturates: a time-out from a configuration file or a time far in the future can't wrap into the past.
#pragma once

#include <compare>
#include <cstdint>

namespace ringway {

namespace time_detail {

constexpr std::int64_t saturated(bool negative) {
  return negative ? INT64_MIN : INT64_MAX;
}
constexpr std::int64_t add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? saturated(b < 0) : sum;
}
constexpr std::int64_t subtract(std::int64_t a, std::int64_t b) {
  std::int64_t difference = 0;
  return __builtin_sub_overflow(a, b, &difference) ? saturated(b > 0) : difference;
}
constexpr std::int64_t multiply(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? saturated((a < 0) != (b < 0)) : product;
}

}  // namespace time_detail

struct Duration {
  std::int64_t ns = 0;

  static constexpr Duration nanoseconds(std::int64_t n) { return {n}; }
  static constexpr Duration microseconds(std::int64_t n) { return {time_detail::multiply(n, 1'000)}; }
  static constexpr Duration milliseconds(std::int64_t n) { return {time_detail::multiply(n, 1'000'000)}; }
  static constexpr Duration seconds(std::int64_t n) { return {time_detail::multiply(n, 1'000'000'000)}; }

  constexpr auto operator<=>(const Duration&) const = default;
  constexpr Duration operator+(Duration other) const { return {time_detail::add(ns, other.ns)}; }
  constexpr Duration operator-(Duration other) const { return {time_detail::subtract(ns, other.ns)}; }
};

// A point on the monotonic clock (or on a simulated one). Never compared across machines.
struct Instant {
  std::int64_t ns = 0;

  static constexpr Instant never() { return {INT64_MAX}; }

  constexpr auto operator<=>(const Instant&) const = default;
  // Ends at never(), so "now + a very long time" stays in the future. never() + a negative duration is an instant like
  // others.
  constexpr Instant operator+(Duration d) const { return {time_detail::add(ns, d.ns)}; }
  constexpr Duration operator-(Instant earlier) const { return {time_detail::subtract(ns, earlier.ns)}; }
};

}  // namespace ringway
