#include "notify/event_fd.hpp"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>

#include "base/check.hpp"
#include "loop/clock.hpp"

namespace ringway {

EventFd::Sent EventFd::signal(StuckWriteGuard& guard) noexcept {
  if (!fd_) {
    return Sent::none;
  }
  if (RW_UNLIKELY(harmed())) {
    fd_.reset();
    return Sent::broken;
  }
  const std::uint64_t one = 1;
  const bool timed = guard.timed;
  const Duration before = RW_UNLIKELY(timed) ? thread_cpu_time(pthread_self()) : Duration{};
  guard.enter();
  const ssize_t written = ::write(fd_.get(), &one, sizeof one);
  const int code = errno;
  guard.leave();
  if (RW_UNLIKELY(timed) && fd_.holdings() != nullptr &&
      fd_.holdings()->charge(thread_cpu_time(pthread_self()) - before, clock_now())) {
    fd_.reset();
    return Sent::held;
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
