#include "notify/event_fd.hpp"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>

#include "base/check.hpp"
#include "loop/clock.hpp"

namespace ringway {

namespace {

constexpr Duration kAllAreTimed = Duration::seconds(10);
// The next one is chosen by what the clock's last digits happen to be, and in the mean the 64th: who knew which, could have
// all others take long.
constexpr std::uint32_t kUntimedMin = 33;
constexpr std::uint32_t kUntimedSpread = 63;

}  // namespace

void StuckWriteGuard::note_timed(Duration cpu, Instant now) noexcept {
  if (cpu > ForeignHoldings::kOrdinaryCall) {
    all_timed_until = now + kAllAreTimed;
  }
  until_timed = now < all_timed_until ? 1 : kUntimedMin + static_cast<std::uint32_t>(cpu.ns % kUntimedSpread);
}

EventFd::Sent EventFd::signal(StuckWriteGuard& guard) noexcept {
  if (!fd_) {
    return Sent::none;
  }
  if (RW_UNLIKELY(harmed())) {
    fd_.reset();
    return Sent::held;
  }
  const std::uint64_t one = 1;
  const bool timed = guard.time_this_one();
  const Duration before = RW_UNLIKELY(timed) ? thread_cpu_time(pthread_self()) : Duration{};
  guard.enter();
  const ssize_t written = ::write(fd_.get(), &one, sizeof one);
  const int code = errno;
  guard.leave();
  if (RW_UNLIKELY(timed)) {
    const Duration cpu = thread_cpu_time(pthread_self()) - before;
    const Instant now = clock_now();
    guard.note_timed(cpu, now);
    if (fd_.holdings() != nullptr && fd_.holdings()->charge(cpu, now)) {
      fd_.reset();
      return Sent::held;
    }
  }
  if (written == static_cast<ssize_t>(sizeof one)) {
    return Sent::sent;
  }
  if (written < 0 && code == EAGAIN) {
    return Sent::already_signalled;
  }
  // EINTR comes only from the watchdog, after the write has hung for long; a part of 8 bytes is a stream out of step.
  const bool held = written < 0 && code == EINTR;
  if (held && fd_.holdings() != nullptr) {
    fd_.holdings()->note_harm();
  }
  fd_.reset();
  return held ? Sent::held : Sent::broken;
}

}  // namespace ringway
