// How much others want a thread's CPU: the share of time in which it could have run and something else did, from the
// kernel's run delay (the second number of /proc/<pid>/task/<tid>/schedstat).
//
// Run delay has the time from each wake-up to the thread's first instruction too, also on an idle CPU. A thread that sleeps
// twenty thousand times a second would seem to be kept waiting for a third of it. So a usual wake-up for each sleep is taken
// off; what a busy CPU adds to a wake-up is milliseconds.
//
// Owner: the thread. Absurd input: figures that go back count as no pressure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.hpp"

namespace ringway {

class CpuPressure {
 public:
  // On an idle CPU no wake-up takes longer, also in a virtual machine.
  static constexpr Duration kWakeupMax = Duration::microseconds(50);

  // The totals so far. Returns the pressure since the last call in thousandths; 0 at the first one.
  std::uint32_t update(Instant now, std::uint64_t run_delay_ns, std::uint64_t sleeps) noexcept {
    std::uint32_t permille = 0;
    const std::int64_t passed = (now - last_).ns;
    if (last_ != Instant::never() && passed > 0) {
      const auto delay = static_cast<std::int64_t>(run_delay_ns - run_delay_ns_);
      const std::int64_t kept_waiting = delay - static_cast<std::int64_t>(sleeps - sleeps_) * kWakeupMax.ns;
      permille = static_cast<std::uint32_t>(std::clamp<std::int64_t>(kept_waiting, 0, passed) * 1000 / passed);
    }
    last_ = now;
    run_delay_ns_ = run_delay_ns;
    sleeps_ = sleeps;
    return permille;
  }

 private:
  Instant last_ = Instant::never();
  std::uint64_t run_delay_ns_ = 0;
  std::uint64_t sleeps_ = 0;
};

}  // namespace ringway
