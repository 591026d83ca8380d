// The clock of stages: the processor's counter, since clock_now() costs more than most stages last. About 10 ns a read.
//
// On x86 the time stamp counter, if the kernel takes it for a clock itself (it is constant then, and the same on all CPUs);
// on AArch64 the virtual counter. Elsewhere CLOCK_MONOTONIC, in ns. How long a tick lasts is measured against
// CLOCK_MONOTONIC.
#pragma once

#include <array>
#include <cstdint>
#include <ctime>

#include "base/time.hpp"
#include "trace/stage.hpp"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace ringway {

class StageClock {
 public:
  // From the program's start on. `counts` is a constant of the machine.
  [[nodiscard]] static std::uint64_t now() noexcept {
#if defined(__x86_64__)
    if (counts_) [[likely]] {
      return __rdtsc();
    }
#elif defined(__aarch64__)
    std::uint64_t ticks = 0;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
    return monotonic_ns();
  }
  // How long so many ticks last. Good to 1 in 1000 a millisecond after the program's start, and better from there on.
  [[nodiscard]] static Duration duration(std::uint64_t ticks) noexcept;
  // Where the tick is on clock_now()'s clock. The same tick may be told a little differently at another time.
  [[nodiscard]] static Instant instant(std::uint64_t ticks) noexcept;
  // The other way, for stamps that were taken by clock_now().
  [[nodiscard]] static std::uint64_t ticks(Instant instant) noexcept;

 private:
  [[nodiscard]] static std::uint64_t monotonic_ns() noexcept;
  [[nodiscard]] static bool counts() noexcept;

  static const bool counts_;
};

// The stages of one record on clock_now()'s clock, in the order that they had; 0: not passed.
[[nodiscard]] std::array<Instant, kStages> instants_of(const StageRecord& record) noexcept;

}  // namespace ringway
