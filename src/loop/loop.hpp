// The event loop: what wakes a thread. Three engines behind one interface, held to one test suite: io_uring
// (io_uring_loop.hpp), epoll (epoll_loop.hpp) and simulated (simulated_loop.hpp, virtual time).
//
// Owner: the thread that calls poll() and wait(); create it, and call everything but wake(), on that thread.
//
// Descriptors are watched edge-wise: `on_ready` is called at least once after each time the descriptor becomes readable
// (a spurious call is allowed), and the loop never reads it. A kick eventfd need not be read either: each write to it is an
// edge. Handlers that do read (a socket) must read until EAGAIN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/check.hpp"
#include "base/result.hpp"
#include "base/time.hpp"

namespace ringway {

class UringEngine;

class FdHandler {
 public:
  virtual ~FdHandler() = default;
  // `events`: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP as they apply.
  virtual void on_ready(std::uint32_t events) noexcept = 0;
};

// REQUIRES: not set any more when it is destroyed, unless its loop was destroyed before.
class TimerHandler {
 public:
  TimerHandler() = default;
  TimerHandler(const TimerHandler&) = delete;
  TimerHandler& operator=(const TimerHandler&) = delete;
  virtual ~TimerHandler() { RW_DCHECK(timer_place_ == kNotSet); }

  virtual void on_timer(Instant now) noexcept = 0;

 private:
  friend class TimerSet;
  static constexpr std::size_t kNotSet = SIZE_MAX;

  std::size_t timer_place_ = kNotSet;  // where the loop's TimerSet keeps it
};

// Names one watch; 0 names none. Never reused within a loop's life, so a stale one is harmless.
struct WatchId {
  std::uint64_t value = 0;
  explicit operator bool() const { return value != 0; }
};

class Loop {
 public:
  Loop() = default;
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  virtual ~Loop() = default;

  // Watches `fd` for `events` (EPOLLIN and/or EPOLLOUT; errors and hang-ups are always reported). The loop doesn't own the
  // fd; keep it open until unwatch() has returned. `handler` outlives the watch.
  [[nodiscard]] virtual Result<WatchId> watch(int fd, std::uint32_t events, FdHandler& handler) = 0;
  // After it returns the handler is not called any more, even for events that had been collected already. Allowed from
  // within a handler, its own included. (Cancelling in the kernel may end later; the engine holds what it needs for that.)
  virtual void unwatch(WatchId watch) noexcept = 0;

  // A timer fires once, in the first poll() or wait() at or after `when`, and is then no longer set. Setting a set one
  // moves it. Few timers per loop: cost is logarithmic in their number.
  virtual void set_timer(TimerHandler& timer, Instant when) = 0;
  virtual void cancel_timer(TimerHandler& timer) noexcept = 0;

  // Handles what is ready, without sleeping; hands prepared I/O to the kernel first (at most one system call for both).
  // Returns how many events were handled: descriptors, completions of I/O and timers; a wake() is none. `now` is the
  // caller's clock read of this turn.
  virtual std::uint32_t poll(Instant now) noexcept = 0;
  // As poll(), but sleeps until something comes or until `deadline`. Submits and waits in one system call where the engine
  // can. A signal alone doesn't end it. A wake() that came before makes it return at once. `woke`, if given, is set to the
  // clock after the sleep and before the handlers run, so that what they stamp is right; it stays as it is if there was no
  // sleep.
  virtual std::uint32_t wait(Instant now, Instant deadline, Instant* woke = nullptr) noexcept = 0;

  // Ends the current or the next wait(). Any thread, async-signal-safe.
  virtual void wake() noexcept = 0;

  // The submission side of io_uring, or nullptr where the loop has none.
  [[nodiscard]] virtual UringEngine* uring() noexcept { return nullptr; }

  // How often the thread has gone to sleep in the kernel, and system calls made (for counters and tests).
  [[nodiscard]] virtual std::uint64_t sleeps() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t system_calls() const noexcept = 0;
};

}  // namespace ringway
