#include "sim/gaps.hpp"

#include <cmath>
#include <utility>

#include "base/check.hpp"

namespace ringway {

Gap constant_gap(Duration gap) {
  return [gap](Instant, Prng&) { return gap; };
}

Gap uniform_gap(Duration min, Duration max) {
  RW_CHECK(min.ns >= 0 && min <= max);
  return [min, width = static_cast<std::uint64_t>((max - min).ns) + 1](Instant, Prng& prng) {
    return min + Duration{static_cast<std::int64_t>(prng.below(width))};
  };
}

Gap poisson_gap(Duration mean) {
  return [mean](Instant, Prng& prng) {
    const double even = (static_cast<double>(prng.next() >> 11U) + 0.5) * 0x1p-53;  // within (0, 1)
    return Duration{static_cast<std::int64_t>(-std::log(even) * static_cast<double>(mean.ns))};
  };
}

Gap on_off_gap(Gap inside, Duration on, Duration off) {
  RW_CHECK(on.ns > 0 && off.ns >= 0);
  return [inside = std::move(inside), on, off](Instant now, Prng& prng) {
    const Duration gap = inside(now, prng);
    const std::int64_t cycle = (on + off).ns;
    const std::int64_t at = (now + gap).ns % cycle;
    return at < on.ns ? gap : gap + Duration{cycle - at};
  };
}

Gap two_phase_gap(Gap first, Gap second, Duration period) {
  RW_CHECK(period.ns > 0);
  return [first = std::move(first), second = std::move(second), period](Instant now, Prng& prng) {
    return (now.ns / period.ns) % 2 == 0 ? first(now, prng) : second(now, prng);
  };
}

Gap no_more() {
  return [](Instant, Prng&) { return Duration{INT64_MAX}; };
}

}  // namespace ringway
