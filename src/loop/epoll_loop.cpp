// Everything is edge-triggered, the wake-up eventfd too: nothing here is ever read, since each write to an eventfd is an
// edge of its own whatever its counter says.
//
// A wake-up is remembered from when it is seen until a wait() returns: wake() promises to end the next wait(), and a poll()
// between the two must not swallow it.
#include "loop/epoll_loop.hpp"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "loop/clock.hpp"

namespace ringway {

namespace {

// Not the value of any WatchId: those have a generation of at least 1.
constexpr std::uint64_t kWakeTag = 0;

}  // namespace

Result<std::unique_ptr<EpollLoop>> EpollLoop::create() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) {
    return fail_errno(errno, "can't create an epoll descriptor (is the limit of open files too low?)");
  }
  UniqueFd wake_event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_event) {
    return fail_errno(errno, "can't create an eventfd for an event loop (is the limit of open files too low?)");
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = kWakeTag;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake_event.get(), &event) != 0) {
    return fail_errno(errno, "can't watch the eventfd of an event loop");
  }
  return std::unique_ptr<EpollLoop>(new EpollLoop(std::move(epoll), std::move(wake_event)));
}

EpollLoop::EpollLoop(UniqueFd epoll, UniqueFd wake_event) : epoll_(std::move(epoll)), wake_event_(std::move(wake_event)) {}

Result<WatchId> EpollLoop::watch(int fd, std::uint32_t events, FdHandler& handler) {
  RW_CHECK((events & ~static_cast<std::uint32_t>(EPOLLIN | EPOLLOUT)) == 0);
  const WatchId id = watches_.add(fd, events, handler);
  epoll_event event{};
  event.events = events | EPOLLET;
  event.data.u64 = id.value;
  system_calls_.add();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    const int error = errno;
    watches_.remove(id);
    return fail_errno(error, fmt::format("can't watch file descriptor {}", fd));
  }
  return id;
}

void EpollLoop::unwatch(WatchId watch) noexcept {
  WatchTable::Watch* found = watches_.find(watch);
  if (found == nullptr) {
    return;
  }
  // Fails only if the descriptor was closed already, against the contract; its events, if any still come, are dropped by
  // their generation, and edges can't make the loop spin.
  epoll_event unused{};
  system_calls_.add();
  static_cast<void>(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->fd, &unused));
  watches_.remove(watch);
}

void EpollLoop::set_timer(TimerHandler& timer, Instant when) {
  timers_.set(timer, when);
}

void EpollLoop::cancel_timer(TimerHandler& timer) noexcept {
  timers_.cancel(timer);
}

std::uint32_t EpollLoop::poll(Instant now) noexcept {
  const std::uint32_t handled = dispatch(collect(Duration{}));
  return handled + timers_.fire(now);
}

std::uint32_t EpollLoop::wait(Instant now, Instant deadline, Instant* woke) noexcept {
  const Instant next_timer = timers_.next();
  const Instant until = std::min(deadline, next_timer);
  if (woken_ || until <= now) {
    const std::uint32_t handled = poll(now);
    woken_ = false;
    return handled;
  }
  sleeps_.add();
  const bool endless = until == Instant::never();
  int count = 0;
  Instant after = now;
  do {
    count = collect(endless ? Duration{INT64_MAX} : until - after);
    if (count == 0 || woke != nullptr) {
      after = clock_now();
    }
    // A call that ends with nothing before its time was interrupted: by a signal, or by the kernel's own work on this thread
    // (an io_uring that the thread has closed interrupts it some milliseconds later). Nothing has come, so the sleep goes
    // on.
  } while (count == 0 && after < until);
  if (woke != nullptr) {
    *woke = after;
  }
  std::uint32_t handled = dispatch(count);
  woken_ = false;
  if (count == 0 && next_timer == until) {
    handled += timers_.fire(after);
  }
  return handled;
}

void EpollLoop::wake() noexcept {
  // acq_rel: pairs with the exchange in dispatch(); what the waker wrote before is seen by the owner after it has taken the
  // wake-up, also when this call finds one pending and writes nothing.
  if (wake_pending_.exchange(true, std::memory_order_acq_rel)) {
    return;
  }
  const int saved_errno = errno;  // we may be in a signal handler
  const std::uint64_t one = 1;
  // EAGAIN (the counter is at its maximum) is the only possible failure, and needs 2^64 wake-ups.
  static_cast<void>(!::write(wake_event_.get(), &one, sizeof one));
  errno = saved_errno;
}

int EpollLoop::collect(Duration timeout) noexcept {
  RW_DCHECK(!dispatching_);
  const bool endless = timeout.ns == INT64_MAX;
  int count = -1;
  if (has_pwait2_) {
    const timespec time{.tv_sec = timeout.ns / 1'000'000'000, .tv_nsec = timeout.ns % 1'000'000'000};
    system_calls_.add();
    count = epoll_pwait2(epoll_.get(), events_.data(), kEventsPerTurn, endless ? nullptr : &time, nullptr);
    // An old kernel says ENOSYS; the seccomp filter of an old container says EPERM.
    has_pwait2_ = count >= 0 || (errno != ENOSYS && errno != EPERM);
  }
  if (!has_pwait2_) {
    // Milliseconds, rounded up: a timer may be late, never early.
    const std::int64_t milliseconds = std::min<std::int64_t>((timeout.ns / 1'000'000) + 1, INT32_MAX);
    const int wait_time = endless ? -1 : timeout.ns == 0 ? 0 : static_cast<int>(milliseconds);
    system_calls_.add();
    count = epoll_wait(epoll_.get(), events_.data(), kEventsPerTurn, wait_time);
  }
  RW_CHECK(count >= 0 || errno == EINTR);
  return std::max(count, 0);
}

std::uint32_t EpollLoop::dispatch(int count) noexcept {
  dispatching_ = true;
  std::uint32_t handled = 0;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events_[static_cast<std::size_t>(i)];
    if (event.data.u64 == kWakeTag) {
      // acq_rel: pairs with the exchange in wake().
      static_cast<void>(wake_pending_.exchange(false, std::memory_order_acq_rel));
      woken_ = true;
    } else if (const WatchTable::Watch* watch = watches_.find(WatchId{event.data.u64}); watch != nullptr) {
      watch->handler->on_ready(event.events);
      ++handled;
    }
  }
  dispatching_ = false;
  return handled;
}

}  // namespace ringway
