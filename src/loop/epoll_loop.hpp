// The event loop over epoll: for hosts that forbid io_uring, and for threads that only serve sockets (the control thread).
// It has no I/O engine; uring() is nullptr.
//
// Owner thread, lifetime and edge semantics: loop.hpp. One system call for each poll() and each wait().
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <memory>

#include "base/unique_fd.hpp"
#include "loop/loop.hpp"
#include "loop/timer_set.hpp"
#include "loop/watch_table.hpp"
#include "metrics/counter.hpp"

namespace ringway {

class EpollLoop final : public Loop {
 public:
  // Errors: no descriptor left (RLIMIT_NOFILE).
  [[nodiscard]] static Result<std::unique_ptr<EpollLoop>> create();

  [[nodiscard]] Result<WatchId> watch(int fd, std::uint32_t events, FdHandler& handler) override;
  void unwatch(WatchId watch) noexcept override;
  void set_timer(TimerHandler& timer, Instant when) override;
  void cancel_timer(TimerHandler& timer) noexcept override;
  std::uint32_t poll(Instant now) noexcept override;
  std::uint32_t wait(Instant now, Instant deadline, Instant* woke = nullptr) noexcept override;
  void wake() noexcept override;
  [[nodiscard]] std::uint64_t sleeps() const noexcept override { return sleeps_.get(); }
  [[nodiscard]] std::uint64_t system_calls() const noexcept override { return system_calls_.get(); }

 private:
  // Events taken from the kernel in one call. What is left stays ready there, so the next turn gets it.
  static constexpr int kEventsPerTurn = 128;

  EpollLoop(UniqueFd epoll, UniqueFd wake_event);

  // Returns the number of events in events_.
  int collect(Duration timeout) noexcept;
  std::uint32_t dispatch(int count) noexcept;

  UniqueFd epoll_;
  UniqueFd wake_event_;
  WatchTable watches_;
  TimerSet timers_;
  Counter sleeps_;
  Counter system_calls_;
  bool woken_ = false;  // a wake was seen that no wait() has returned for yet
  bool dispatching_ = false;
  bool has_pwait2_ = true;  // nanosecond timeouts (Linux 5.11); found out by the first sleep
  std::array<epoll_event, kEventsPerTurn> events_{};
  // Written by wakers on other threads, so on a line of its own.
  alignas(64) std::atomic<bool> wake_pending_{false};
};

}  // namespace ringway
