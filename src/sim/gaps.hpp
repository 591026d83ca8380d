// Times between events, for the simulation: when a source's next work comes.
//
// A Gap is asked once per event, with the time of that event, and may keep state; each source needs its own. The generator
// is the source's, so that sources don't change each other's times.
#pragma once

#include <functional>

#include "base/prng.hpp"
#include "base/time.hpp"

namespace ringway {

using Gap = std::function<Duration(Instant now, Prng& prng)>;

[[nodiscard]] Gap constant_gap(Duration gap);
// Evenly between the two, both included. REQUIRES: 0 <= min <= max.
[[nodiscard]] Gap uniform_gap(Duration min, Duration max);
// Events that know nothing of each other: exponential gaps.
[[nodiscard]] Gap poisson_gap(Duration mean);
// `inside` for `on`, then nothing for `off`, over and over from time 0. An event that would come in the pause comes at its
// end.
[[nodiscard]] Gap on_off_gap(Gap inside, Duration on, Duration off);
// `first` for `period`, `second` for `period`, over and over from time 0.
[[nodiscard]] Gap two_phase_gap(Gap first, Gap second, Duration period);
// No event any more.
[[nodiscard]] Gap no_more();

}  // namespace ringway
