#include "loop/clock.hpp"

#include <ctime>

namespace ringway {

Instant clock_now() noexcept {
  timespec time{};
  // Can't fail: the clock exists on every Linux, and the pointer is ours.
  static_cast<void>(clock_gettime(CLOCK_MONOTONIC, &time));
  return Instant{std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec};
}

Duration thread_cpu_time(pthread_t thread) noexcept {
  clockid_t clock{};
  timespec used{};
  if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &used) != 0) {
    return {};
  }
  return Duration{std::int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec};
}

}  // namespace ringway
